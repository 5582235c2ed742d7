"""What `slurmtrain status` tells of a run that recovers, waits, is held, or has spent its budget; and how its array is cancelled."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from slurmtrain.resilience.budget import Spent, write_budget
from slurmtrain.resilience.examination import Sight, Suspect, agreed, differed
from slurmtrain.resilience.records import Outcome
from slurmtrain.telemetry.interventions import Book, Rollback
from tests.cli.desk import Desk, one_line_of
from tests.cli.ran import attempted, owned, submitted

CRASH = Outcome("failed", "rank 3 on n2: ValueError: bad token", 3, "n2", 5, 4, category="rank_crash")


@pytest.fixture
def desk(tmp_path) -> Desk:
    return Desk(tmp_path)


def status(desk: Desk, word: str = "job") -> dict:
    result = desk.type("status", word, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_requeued_job_says_when_it_may_start_and_what_starts_it_now(desk):
    run, job_id = submitted(desk, state="PENDING", reason="BeginTime")
    at = desk.clock.time() + 90
    desk.slurm.change(job_id, start_time=at)
    attempted(desk, run, job_id, outcome=Outcome("requeue", "stopped at a checkpoint (requeue)", category="time_limit"))
    told = status(desk)
    assert (told["state"], told["eligible_at"], told["category"]) == ("REQUEUED", at, "time_limit")
    shown = desk.type("status", "job").stdout
    assert f"eligible at {time.strftime('%H:%M:%S', time.localtime(at))} (Slurm's begin time)" in shown
    assert f"then        scontrol update JobId={job_id} StartTime=now" in shown


def test_numbers_that_went_wrong_and_a_corruption(desk):
    run, _ = submitted(desk)
    told = status(desk)
    assert (told["skipped_steps"], told["rollbacks"], told["corruption"]) == (0, 0, "")
    run.numerics_json.write_bytes(Book(3, (Rollback(step=9, began=8, to=6, cause="spike"),)).to_json())
    exam = differed(None, Sight(1, 9, 6, (Suspect(1, "n1", 1),), True, ("n1", "n2")))
    run.examination_json.write_bytes(exam.to_json())
    told = status(desk)
    assert (told["skipped_steps"], told["rollbacks"], told["corruption"]) == (3, 1, "steps 7 to 9 are run again (repeat)")
    shown = desk.type("status", "job").stdout
    assert "numbers     3 steps skipped, 1 rollback: not finite, or a spike" in shown
    run.examination_json.write_bytes(agreed(exam).to_json())
    assert "corruption  transient: steps 7 to 9 again on the same nodes: all equal" in desk.type("status", "job").stdout
    run.numerics_json.write_text("{")
    assert status(desk)["rollbacks"] == 0, "a damaged file keeps nobody from the rest"


def test_a_job_that_waits_for_nodes_has_no_such_time(desk):
    run, job_id = submitted(desk, state="PENDING", reason="Resources")
    attempted(desk, run, job_id, outcome=CRASH)
    told = status(desk)
    assert (told["state"], told["eligible_at"], told["then"]) == ("REQUEUED", None, "")


def test_a_held_job_says_why_and_what_to_type(desk):
    _, job_id = submitted(desk, state="PENDING", reason="launch failed requeued held")
    told = status(desk)
    assert "its prolog" in told["reason"]
    assert told["category"] == "prolog_failure"
    assert told["then"] == f"scontrol release {job_id}"


def test_what_was_lost_is_told_and_that_the_run_goes_on(desk):
    run, job_id = submitted(desk)
    attempted(desk, run, job_id, outcome=replace(CRASH, t_end=desk.clock.time() + 9))
    owned(desk, run, job_id)
    write_budget(run, desk.disk, Spent(job_id, 1, 4, 1, {"rank_crash": 1}, (1,)))
    told = status(desk)
    assert (told["state"], told["category"], told["tried"]) == ("RUNNING", "rank_crash", [])
    assert told["budget"] == "1 of 3 attempts without a newer checkpoint; rank crash 1 of 2"
    shown = desk.type("status", "job").stdout
    assert "RUNNING: attempt 1 ended: rank 3 on n2: ValueError: bad token" in shown
    assert "cause       rank crash" in shown
    assert "lost        1 of 3 attempts" in shown


def test_a_spent_budget_is_a_failure_with_a_summary_of_what_was_tried(desk):
    run, job_id = submitted(desk, state="FAILED")
    for number in (1, 2, 3):
        attempted(desk, run, job_id, number=number, outcome=CRASH)
    why = "3 attempts in a row brought no newer checkpoint"
    write_budget(run, desk.disk, Spent(job_id, 3, 4, 3, {"rank_crash": 3}, (1, 2, 3), why))
    told = status(desk)
    assert told["state"] == "FAILED"
    assert told["error"] == f"{CRASH.cause}; not started again: {why}"
    assert told["tried"] == [f"attempt {n}: rank crash on n2 at step 5: {CRASH.cause}" for n in (1, 2, 3)]
    shown = desk.type("status", "job").stdout
    assert shown.count("\ntried ") == 3
    assert "submit" in told["then"]


CHAIN = ("--set", "slurm.continuation=chain", "--set", "slurm.links=3")


def test_a_chain_is_one_array_without_requeue_and_one_scancel_ends_it(desk):
    result = desk.submit("--parsable", *CHAIN)
    assert result.exit_code == 0, result.output
    script = desk.run().script.read_text()
    assert "#SBATCH --array=1-3%1\n" in script
    assert "#SBATCH --no-requeue\n" in script
    assert "#SBATCH --requeue" not in script
    job_id = result.stdout.strip()
    run = desk.run()
    desk.slurm.put(replace(desk.slurm.job(job_id), job_id=f"{job_id}_2", comment=str(run.path)))
    desk.slurm.forget(job_id)
    assert f"job         {job_id}_2, link 2 of 3\n" in desk.type("status", "job").stdout
    assert desk.type("cancel", "job").exit_code == 0
    assert [one.job_id for one in desk.slurm.cancelled] == [job_id]


def test_a_chain_and_an_array_are_refused_with_both_keys(desk):
    said = one_line_of(desk.submit("--set", "slurm.continuation=chain", "--set", "slurm.array=1-4%1"))
    assert "slurm.array" in said
    assert "slurm.continuation" in said
    assert desk.files() == []


def test_a_budget_for_no_cause_is_refused_with_near_names(desk):
    said = one_line_of(desk.submit("--set", "recovery.budgets.node_failur=3"))
    assert "recovery.budgets.node_failur" in said
    assert "did you mean 'node_failure'" in said


def test_more_links_than_the_cluster_takes_are_refused_by_their_own_key(desk):
    assert "slurm.links" in one_line_of(desk.submit("--set", "slurm.continuation=chain", "--set", "slurm.links=11"))
