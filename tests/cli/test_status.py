"""`slurmtrain status`: what people and programs read about a run, with and without Slurm's word."""

from __future__ import annotations

import json

import psutil
import pytest

from slurmtrain.resilience.records import Outcome
from slurmtrain.store.local import LocalNewest, forget_after, make_rules, tell_newest
from slurmtrain.telemetry.events import Event
from slurmtrain.telemetry.history import add_act
from tests.cli.desk import Desk, one_line_of
from tests.cli.ran import attempted, owned, submitted, write_event

KEYS = [
    "run",
    "state",
    "reason",
    "job_id",
    "attempt",
    "step",
    "steps",
    "loss",
    "tokens_per_s",
    "nodes",
    "last_durable_step",
    "checked_s_ago",
]


@pytest.fixture
def desk(tmp_path) -> Desk:
    return Desk(tmp_path)


def status(desk: Desk, word: str = "job") -> dict:
    result = desk.type("status", word, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_object_of_a_run_that_trains(desk):
    run, job_id = submitted(desk)
    attempted(desk, run, job_id)
    told = status(desk)
    config = json.loads(run.job_json.read_text())["training"]
    assert list(told)[1 : len(KEYS) + 1] == KEYS
    assert (told["state"], told["job_id"], told["attempt"], told["step"], told["steps"]) == ("RUNNING", job_id, 1, 5, config["steps"])
    assert (told["loss"], told["last_durable_step"], told["nodes"]) == (4.5, 4, ["n2", "n1"])
    assert told["tokens_per_s"] == pytest.approx(config["global_batch"] * config["sequence_length"] / 0.5)
    assert told["checked_s_ago"] == 0.0
    assert told["next"] == "slurmtrain logs -f job"


def test_what_lies_on_the_nodes_own_disks_is_told_apart(desk):
    run, job_id = submitted(desk)
    attempted(desk, run, job_id)
    make_rules(run)
    tell_newest(run, LocalNewest(5, 1, desk.clock.time(), ("n1", "n2")))
    told = status(desk)
    assert (told["last_durable_step"], told["shared_step"]) == (5, 4)
    assert "step 5 on the nodes' own disks; step 4 in the run folder" in desk.type("status", "job").stdout
    forget_after(run, 4)
    assert status(desk)["last_durable_step"] == 4


def test_a_job_id_or_a_path_means_the_run(desk):
    run, job_id = submitted(desk)
    assert status(desk, job_id)["run"] == status(desk, str(run.path))["run"] == "job"


def test_a_job_that_waits(desk):
    submitted(desk, state="PENDING", reason="Resources")
    told = status(desk)
    assert (told["state"], told["reason"], told["attempt"], told["loss"]) == ("PENDING", "waits (Resources)", None, None)


def test_the_highest_attempt_wins(desk):
    run, job_id = submitted(desk, state="PENDING", reason="BeginTime")
    attempted(desk, run, job_id, steps=range(1, 9), outcome=Outcome("requeue", "stopped at a checkpoint (requeue)"))
    assert (status(desk)["state"], status(desk)["step"]) == ("REQUEUED", 8)
    desk.slurm.change(job_id, state="RUNNING")
    attempted(desk, run, job_id, number=2, steps=range(8, 10))
    assert (status(desk)["attempt"], status(desk)["step"]) == (2, 9)


def test_the_failed_ranks_error_and_its_log_are_named(desk):
    run, job_id = submitted(desk, state="FAILED")
    attempted(desk, run, job_id, outcome=Outcome("failed", "rank 3 on n2: ValueError: bad token", 3, "n2", 5, 4))
    told = status(desk)
    assert (told["state"], told["error"]) == ("FAILED", "rank 3 on n2: ValueError: bad token")
    assert told["next"] == "slurmtrain logs job --rank 3"
    assert told["then"] == "slurmtrain submit JOB.toml -J job --resume"
    people = desk.type("status", "job").stdout
    assert "rank 3 on n2: ValueError: bad token" in people
    assert "next        slurmtrain logs job --rank 3" in people


def test_a_start_that_died_is_told_by_the_last_line_of_its_log_and_not_by_the_attempt_before(desk):
    run, job_id = submitted(desk, state="FAILED")
    attempted(desk, run, "999", outcome=Outcome("failed", "rank 3 on n2: boom", rank=3))
    add_act(run, desk.disk, desk.clock.time(), "submit", job_id=job_id)
    run.slurm_out(job_id).write_text("before\nslurmtrain: no interpreter /opt/python on n1\n\n")
    told = status(desk)
    assert told["state"] == "FAILED"
    assert told["reason"].endswith("its start left no word; its log ends: slurmtrain: no interpreter /opt/python on n1")
    assert told["error"] == told["reason"]
    assert told["next"] == "slurmtrain logs job"


def test_without_accounting_a_run_that_slurm_has_forgotten_is_told_by_its_files(desk):
    run, job_id = submitted(desk)
    attempted(desk, run, job_id, outcome=Outcome("finished", "all steps done"))
    run.finished.write_text("{}")
    desk.slurm.forget(job_id)
    told = status(desk)
    assert (told["state"], told["next"]) == ("FINISHED", "slurmtrain ckpt list job")


def test_a_slurm_that_does_not_answer_is_said_and_files_are_told(desk):
    run, job_id = submitted(desk)
    attempted(desk, run, job_id)
    desk.slurm.down = True
    told = status(desk)
    assert (told["state"], told["checked_s_ago"], told["step"]) == ("RUNNING", None, 5)
    assert "does not answer" in told["reason"]
    assert "Slurm does not answer" in desk.type("status", "job").stdout


def test_a_run_without_slurm_is_told_by_its_process(desk):
    run, _ = submitted(desk)
    add_act(run, desk.disk, desk.clock.time(), "run")
    attempted(desk, run, "")
    desk.clock.advance(psutil.Process().create_time() + 5 - desk.clock.time())
    owned(desk, run, "")
    desk.slurm.questions.clear()
    assert status(desk)["state"] == "RUNNING"
    owned(desk, run, "", pid=2**22 + 1)
    told = status(desk)
    assert (told["state"], told["checked_s_ago"], told["job_id"]) == ("FAILED", None, "")
    assert told["next"] == "slurmtrain logs job"
    assert desk.slurm.questions == []


def test_a_stopped_run_says_how_to_go_on(desk):
    run, job_id = submitted(desk, state="COMPLETED")
    attempted(desk, run, job_id, outcome=Outcome("stopped", "stopped at a checkpoint (stop)"))
    told = status(desk)
    assert (told["state"], told["next"]) == ("STOPPED", "slurmtrain submit JOB.toml -J job --resume")


def test_all_runs_as_a_table_and_as_json_with_one_squeue_each_and_no_more(desk):
    for name, state in (("alpha", "RUNNING"), ("beta", "PENDING")):
        submitted(desk, name, state=state)
    run, job_id = submitted(desk, "gamma", state="FAILED")
    attempted(desk, run, job_id, outcome=Outcome("failed", "rank 0 code 7"))
    desk.slurm.questions.clear()
    result = desk.type("status")
    assert [line.split()[:2] for line in result.stdout.splitlines()[1:]] == [["alpha", "RUNNING"], ["beta", "PENDING"], ["gamma", "FAILED"]]
    assert set(desk.slurm.questions) == {"my_jobs"}, "a job whose end the files tell is not asked for"
    told = json.loads(desk.type("status", "--json").stdout)
    assert [one["run"] for one in told] == ["alpha", "beta", "gamma"]


def test_no_runs_is_said_on_stderr(desk):
    result = desk.type("status")
    assert (result.exit_code, result.stdout) == (0, "")
    assert str(desk.root) in result.stderr


def test_a_word_that_is_no_run_is_one_line(desk):
    submitted(desk)
    assert "no run 'jop'" in one_line_of(desk.type("status", "jop"))


def test_watch_needs_a_run(desk):
    assert "--watch" in one_line_of(desk.type("status", "--watch"))


def test_watch_prints_lines_until_the_run_has_finished(desk):
    run, job_id = submitted(desk)
    attempted(desk, run, job_id)
    desk.clock.at(4.0, lambda: write_event(run, Event("step", 0.0, 1, 0, {"step": 6, "loss": 4.4, "step_s": 0.5})))
    desk.clock.at(8.0, lambda: run.finished.write_text("{}"))
    result = desk.type("status", "job", "--watch")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split("step ")[1].split("/")[0] for line in lines if " step " in line and "loss" in line and "tokens/s" in line][:6] == [
        "1", "2", "3", "4", "5", "6",
    ]  # fmt: skip
    assert lines.count("RUNNING") == 1
    assert "FINISHED: all steps done" in lines


def test_watch_ends_with_1_when_the_run_failed(desk):
    run, job_id = submitted(desk)
    attempted(desk, run, job_id)
    desk.clock.at(3.0, lambda: attempted(desk, run, job_id, steps=range(0), outcome=Outcome("failed", "rank 3 code 7")))
    desk.clock.at(3.0, lambda: desk.slurm.change(job_id, state="FAILED"))
    result = desk.type("status", "job", "--watch")
    assert result.exit_code == 1
    assert "rank 3 code 7" in result.stdout


def test_watch_goes_on_through_a_requeue(desk):
    run, job_id = submitted(desk)
    attempted(desk, run, job_id, outcome=Outcome("requeue", "stopped at a checkpoint (requeue)"))
    desk.clock.at(6.0, lambda: desk.slurm.change(job_id, state="PENDING", reason="BeginTime"))
    desk.clock.at(20.0, lambda: desk.slurm.change(job_id, state="RUNNING"))
    desk.clock.at(20.0, lambda: attempted(desk, run, job_id, number=2, steps=range(5, 8)))
    desk.clock.at(40.0, lambda: run.finished.write_text("{}"))
    result = desk.type("status", "job", "--watch")
    assert result.exit_code == 0
    assert "REQUEUED: waits (BeginTime)" in result.stdout


def test_rates_that_steps_tell_are_averaged_over_their_time(desk):
    """Two steps of 1 s and 3 s at 400 and 800 tokens/s are 700 tokens/s, whatever the batch was."""
    run, job_id = submitted(desk)
    attempted(desk, run, job_id, steps=range(0))
    for step, seconds, speed in ((1, 1.0, 400.0), (2, 3.0, 800.0)):
        fields = {
            "step": step,
            "loss": 2.0,
            "step_s": seconds,
            "tokens_per_s": speed,
            "tokens_per_s_per_gpu": speed / 8,
            "mfu": speed / 2000,
        }
        write_event(run, Event("step", desk.clock.time(), 1, 0, fields))
    told = status(desk)
    assert (told["tokens_per_s"], told["tokens_per_s_per_gpu"], told["mfu"]) == (700.0, 87.5, pytest.approx(0.35))
    assert "2.0000  700 tokens/s  MFU 35.0%" in desk.type("status", "job").stdout


def test_rates_that_no_step_tells_are_null(desk):
    run, job_id = submitted(desk)
    attempted(desk, run, job_id)
    told = status(desk)
    assert (told["tokens_per_s_per_gpu"], told["mfu"]) == (None, None)


def test_the_newest_evaluations_and_what_was_skipped(desk):
    """Broken: a run whose every step overflows looks as well as one that learns."""
    run, job_id = submitted(desk)
    raw = json.loads(run.job_json.read_text())
    run.job_json.write_text(json.dumps(raw | {"evaluation": {"sets": {"held": "/e", "web": "/w"}, "every_steps": 2}}))
    attempted(desk, run, job_id, steps=range(0))
    for step in (1, 2, 3):
        write_event(run, Event("step", desk.clock.time(), 1, 0, {"step": step, "loss": 2.0, "step_s": 1.0, "skipped": step > 1}))
    for step, name, loss in ((0, "held", 3.0), (0, "web", 4.0), (2, "held", 2.5), (2, "web", "nan")):
        write_event(
            run, Event("eval", desk.clock.time(), 1, 0, {"step": step, "set": name, "eval_loss": loss, "tokens": 9, "seconds": 0.1})
        )
    told = status(desk)
    assert (told["evaluation"], told["skipped"], told["recent"]) == ({"held": [2, 2.5], "web": [2, "nan"]}, 2, 3)
    shown = desk.type("status", "job").stdout
    assert "evaluation  held 2.5000 at step 2, web nan at step 2" in shown
    assert "skipped     2 of the last 3 steps: gradients overflow" in shown


def test_a_run_that_its_target_ended_says_so(desk):
    run, job_id = submitted(desk)
    raw = json.loads(run.job_json.read_text())
    run.job_json.write_text(json.dumps(raw | {"target": {"below": 5.0, "stop": True}}))
    attempted(desk, run, job_id, outcome=Outcome("finished", "all steps done"))
    run.finished.write_text("{}")
    assert (told := status(desk))["step"] < told["steps"]
    assert told["reason"] == "its target was reached"


def test_evaluations_skips_targets_and_notes_are_lines_of_a_watched_run(desk):
    run, job_id = submitted(desk)
    attempted(desk, run, job_id, outcome=Outcome("finished", "all steps done"))
    for kind, fields in {
        "eval": {"step": 5, "set": "held-out", "eval_loss": 2.5, "tokens": 4096, "seconds": 0.5},
        "skip": {"step": 4, "scale": 8.0, "next_scale": 4.0, "grad_norm": "inf"},
        "target": {"step": 5, "metric": "loss", "below": 5.0, "value": 4.5, "tokens": 500, "elapsed_s": 60.0, "gpu_hours": 0.1},
        "note": {"text": "no room for the tokens on n1"},
    }.items():
        write_event(run, Event(kind, desk.clock.time(), 1, 0, fields))
    run.finished.write_text("{}")
    shown = desk.type("status", "job", "--watch").stdout
    said = [
        "evaluation of held-out at step 5: loss 2.5000",
        "step 4 was skipped",
        "target reached at step 5",
        "no room for the tokens on n1",
    ]
    assert all(text in shown for text in said), shown
