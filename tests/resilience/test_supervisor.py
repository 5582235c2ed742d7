"""The supervisor from its gates to the requeue, on a stage of fakes: each end, and in which order it is written down."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from slurmtrain.errors import SlurmError
from slurmtrain.resilience.records import read_owner
from slurmtrain.resilience.signals import NOTICE, TERM, Signals
from slurmtrain.store.local import LocalNewest, make_rules, tell_newest
from slurmtrain.telemetry.history import read_acts
from slurmtrain.telemetry.stopfile import read_stop
from tests.resilience.stage import Stage


def test_a_run_finishes(tmp_path):
    stage = Stage(tmp_path)
    stage.train(until=5, save_every=5)
    summary = stage.supervise()
    assert (summary.code, summary.outcome, summary.step, stage.exit_code) == (0, "finished", 5, 0)
    assert json.loads(stage.run.finished.read_text())["step"] == 5
    assert stage.slurm.requeued == []
    assert read_owner(stage.run.owner_json).ended
    assert [act.what for act in read_acts(stage.run)] == ["start", "finish"]


def test_gates_start_nothing(tmp_path):
    stage = Stage(tmp_path)
    stage.run.stop.touch()
    assert (stage.supervise().code, stage.exit_code) == (0, 0)
    assert "--resume" in stage.lines[-1]
    stage.run.finished.touch()
    assert stage.supervise().outcome == "finished"
    assert (stage.specs, stage.run.attempt_numbers()) == ([], [])


def test_usr2_is_a_save_and_one_requeue_and_that_comes_last(tmp_path):
    stage, seen = Stage(tmp_path), {}
    stage.train(until=1000)
    stage.at(10.0, stage.signal(NOTICE))
    requeue = stage.slurm.requeue

    def look_then_requeue(job_id):
        seen.update(code=stage.exit_code, outcome=stage.recorded().outcome, ended=read_owner(stage.run.owner_json).ended)
        seen["acts"] = [act.what for act in read_acts(stage.run)]
        requeue(job_id)

    stage.slurm.requeue = look_then_requeue
    summary = stage.supervise()
    assert (summary.code, stage.slurm.requeued) == (75, [stage.job_id])
    assert (seen["code"], seen["outcome"].kind, seen["ended"], seen["acts"]) == (75, "requeue", True, ["start", "requeue"])
    assert seen["outcome"].last_durable_step == seen["outcome"].step == 10


def test_a_checkpoint_on_the_nodes_own_disks_is_progress(tmp_path):
    stage = Stage(tmp_path)
    stage.train(until=1000)
    stage.at(10.0, stage.signal(NOTICE))
    make_rules(stage.run)
    tell_newest(stage.run, LocalNewest(700, 1, 0.0, ("n1", "n2")))
    stage.supervise()
    assert stage.recorded().outcome.last_durable_step == 700


@pytest.mark.parametrize("order", [(NOTICE, TERM), (TERM, NOTICE)])
def test_two_signals_50_ms_apart_are_one_requeue(tmp_path, order):
    stage = Stage(tmp_path)
    stage.train(until=1000)
    stage.at(10.0, stage.signal(order[0]))
    stage.at(10.05, stage.signal(order[1]))
    assert stage.supervise().code == 75
    assert stage.slurm.requeued == [stage.job_id]


@pytest.mark.parametrize(
    ("state", "reason", "requeued"), [("COMPLETING", "TimeLimit", 1), ("COMPLETING", "None", 0), ("RUNNING", "None", 0)]
)
def test_term_alone_requeues_only_at_the_time_limit(tmp_path, state, reason, requeued):
    stage = Stage(tmp_path)
    stage.train(until=1000)
    stage.at(10.0, lambda: stage.job(state=state, reason=reason))
    stage.at(10.1, stage.signal(TERM))
    assert stage.supervise().code == 75
    assert len(stage.slurm.requeued) == requeued
    assert stage.recorded().outcome.last_durable_step == stage.recorded().outcome.step


def test_usr2_and_then_scancel_does_not_bring_a_cancelled_job_back(tmp_path):
    stage = Stage(tmp_path)
    stage.train(until=1000)
    stage.at(10.0, stage.signal(NOTICE))
    stage.at(10.1, lambda: stage.job(state="COMPLETING", reason="None"))
    stage.at(10.2, stage.signal(TERM))
    assert stage.supervise().code == 75
    assert stage.slurm.requeued == []


def test_ranks_that_do_not_save_after_term_are_written_down_before_killwait_is_over(tmp_path):
    stage = Stage(tmp_path)
    stage.obedient = False
    stage.train(until=1000)
    stage.at(10.0, lambda: stage.job(state="COMPLETING", reason="TimeLimit"))
    stage.at(10.0, stage.signal(TERM))
    assert stage.supervise().code == 75
    outcome = stage.recorded().outcome
    assert outcome.t_end - stage.began < 10 + 5, "KillWait is 5 s here"
    assert "did not save" in outcome.cause
    assert stage.slurm.requeued == [stage.job_id]


def test_the_deadline_is_end_time_less_two_saves_a_step_and_a_minute(tmp_path):
    stage, asked = Stage(tmp_path), []
    began = stage.clock.time()
    stage.job(end_time=began + 400.0)
    stage.train(until=1000, step_s=2.0)
    stage.at(20.5, lambda: stage.save(10, seconds=15.0))
    write = stage.disk.write

    def watch_write(path, data):
        if path.name == "stop":
            asked.append(stage.clock.time() - began)
        write(path, data)

    stage.disk.write = watch_write
    assert stage.supervise().code == 75
    assert len(asked) == 1
    assert 400 - 2 * 15 - 2 - 60 <= asked[0] <= 400 - 2 * 15 - 2 - 60 + 1.5
    assert stage.slurm.requeued == [stage.job_id]


def test_a_time_that_is_too_short_is_told_and_still_gives_one_step(tmp_path):
    stage = Stage(tmp_path)
    stage.job(end_time=stage.clock.time() + 45.0)
    stage.train(until=1000, step_s=3.0)
    assert stage.supervise().code == 75
    assert any("longer --time" in line for line in stage.lines)
    assert stage.recorded().outcome.step >= 1


def test_slurm_moves_the_end_and_the_supervisor_hears_of_it(tmp_path):
    stage = Stage(tmp_path)
    began = stage.clock.time()
    stage.job(end_time=began + 10_000.0)
    stage.train(until=1000, step_s=1.0)
    stage.at(50.0, lambda: stage.job(end_time=began + 200.0))
    stage.supervise()
    assert 200 - 61 <= stage.recorded().outcome.t_end - began <= 200 - 61 + 5


def test_slurm_is_asked_about_the_job_at_most_every_30_seconds(tmp_path):
    stage = Stage(tmp_path)
    stage.train(until=300, step_s=1.0)
    stage.supervise()
    assert stage.slurm.questions.count("job") <= 2 + 300 / 30


def test_stop_saves_finishes_and_does_not_requeue(tmp_path):
    stage = Stage(tmp_path)
    stage.train(until=1000)
    stage.at(10.0, stage.run.stop.touch)
    stage.at(10.2, stage.signal(NOTICE))
    summary = stage.supervise()
    assert (summary.code, summary.outcome, stage.slurm.requeued) == (0, "stopped", [])


def test_fifty_signals_at_random_times_are_one_stop_and_one_requeue(tmp_path):
    stage, chance = Stage(tmp_path), random.Random(20)
    stage.train(until=1000)
    for _ in range(50):
        stage.at(10.0 + chance.random() * 3, stage.signal(chance.choice([NOTICE, TERM])))
    stage.at(10.0, stage.signal(NOTICE))
    assert stage.supervise().code == 75
    assert stage.slurm.requeued == [stage.job_id]
    assert [path.name for _, path in stage.disk.calls].count("stop") == 1
    assert read_stop(stage.run.attempt(1).stop) == "requeue"


def test_requeued_twice_three_attempts_and_three_logs(tmp_path):
    stage = Stage(tmp_path)
    for restart in range(3):
        if restart:
            stage.start_again(restart)
        stage.at(1.0, lambda r=restart: stage.make_step(r + 1))
        stage.at(2.0, stage.signal(NOTICE) if restart < 2 else (lambda: stage.everybody("finished")))
        stage.supervise()
    assert [stage.recorded(n).outcome.kind for n in (1, 2, 3)] == ["requeue", "requeue", "finished"]
    assert [stage.recorded(n).restart_count for n in (1, 2, 3)] == [0, 1, 2]
    assert [stage.run.attempt(n).node_log(0).read_text() for n in (1, 2, 3)] == [f"attempt {n} was here\n" for n in (1, 2, 3)]


def test_three_starts_without_a_newer_checkpoint_are_enough(tmp_path):
    stage, codes = Stage(tmp_path), []
    for restart in range(3):
        if restart:
            stage.start_again(restart)
        stage.at(2.0, stage.signal(NOTICE))
        stage.at(2.4, lambda: stage.everybody("stopped", "requeue"))
        stage.obedient = False
        codes.append(stage.supervise().code)
    assert codes == [75, 75, 93]
    assert len(stage.slurm.requeued) == 2


def test_a_second_job_of_a_run_that_runs_is_refused_with_its_name_and_goes_on_once_that_has_ended(tmp_path):
    stage = Stage(tmp_path)
    stage.at(1.0, stage.signal(NOTICE))
    stage.supervise()
    first, stage.signals = stage.job_id, Signals(stage.clock.monotonic)
    owner = read_owner(stage.run.owner_json)
    stage.disk.write(stage.run.owner_json, json.dumps({**owner.__dict__, "ended": False}).encode())
    stage.job_id = stage.slurm.submit(stage.run.path, options=["--nodes=2"])
    stage.environ["SLURM_JOB_ID"] = stage.job_id
    refused = stage.supervise()
    assert (refused.code, stage.exit_code, refused.outcome) == (93, 93, "refused")
    assert f"job {first}" in stage.lines[-1]
    stage.slurm.change(first, state="COMPLETED")
    stage.train(until=2)
    assert stage.supervise().outcome == "finished"
    assert stage.recorded(2).job_id == stage.job_id


def test_a_segment_ends_well_and_leaves_the_rest_to_the_next(tmp_path):
    stage = Stage(tmp_path, array="1-4%1")
    stage.train(until=1000)
    stage.at(5.0, stage.signal(NOTICE))
    assert (stage.supervise().code, stage.exit_code, stage.slurm.requeued) == (0, 0, [])


def test_a_member_of_an_array_is_requeued_by_its_own_name(tmp_path):
    stage = Stage(tmp_path)
    stage.slurm.put(replace(stage.job(), job_id="7_3"))
    stage.train(until=1000)
    stage.at(5.0, stage.signal(NOTICE))
    environ = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3", "SLURM_JOB_ID": "9"}
    assert stage.supervise(environ=environ).job_id == "7_3"
    assert stage.slurm.requeued == ["7_3"]
    assert {spec.job_id for spec in stage.specs} == {"9"}


def test_in_the_foreground_nothing_is_requeued(tmp_path):
    stage = Stage(tmp_path)
    stage.train(until=1000)
    stage.at(5.0, stage.signal(NOTICE))
    assert stage.supervise(foreground=True).code == 75
    assert stage.slurm.requeued == []


def test_a_full_disk_at_the_end_does_not_keep_the_requeue_from_happening(tmp_path):
    stage = Stage(tmp_path)
    stage.train(until=1000)
    stage.at(5.0, stage.signal(NOTICE))
    leave = stage.everybody

    def leave_and_fill_the_disk(kind: str, error: str = "") -> None:
        leave(kind, error)
        stage.disk.faults.update(write=None, append=None)

    stage.everybody = leave_and_fill_the_disk
    assert stage.supervise().code == 75
    assert stage.slurm.requeued == [stage.job_id]
    assert any("No space left" in line for line in stage.lines)


def test_scontrol_that_dies_of_its_own_requeue_is_no_refusal(tmp_path):
    stage = Stage(tmp_path)
    stage.train(until=1000)
    stage.at(5.0, stage.signal(NOTICE))

    def requeue(job_id: str) -> None:
        stage.clock.at(0.2, stage.signal(TERM))
        raise SlurmError("scontrol: ended with code -15")

    stage.slurm.requeue = requeue
    assert stage.supervise().code == 75
    assert not any("no requeue" in line for line in stage.lines)


def test_a_requeue_that_is_refused_is_told_with_what_to_do(tmp_path):
    stage = Stage(tmp_path)
    stage.train(until=1000)
    stage.at(5.0, stage.signal(NOTICE))

    def requeue(job_id: str) -> None:
        raise SlurmError("scontrol: Requested operation is presently disabled for job 1")

    stage.slurm.requeue = requeue
    assert stage.supervise().code == 75
    assert "presently disabled" in stage.lines[-1]
    assert "--resume" in stage.lines[-1]


def test_a_slurm_that_does_not_answer_is_asked_for_the_requeue_again(tmp_path):
    stage = Stage(tmp_path)
    stage.train(until=1000)
    stage.at(5.0, stage.signal(NOTICE))
    stage.at(5.1, lambda: setattr(stage.slurm, "down", True))
    stage.at(40.0, lambda: setattr(stage.slurm, "down", False))
    assert stage.supervise().code == 75
    assert stage.slurm.requeued == [stage.job_id]
