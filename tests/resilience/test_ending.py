"""Exit code and requeue of every end: the table of the module, row by row."""

from __future__ import annotations

import pytest

from slurmtrain.resilience.ending import Scene, decide_end, stuck_attempts
from slurmtrain.resilience.records import AttemptRecord, Outcome
from slurmtrain.slurm.types import JobInfo


def job(state: str = "RUNNING", reason: str = "None", **more: float) -> JobInfo:
    return JobInfo("12", "llama", state, reason, **more)


def scene(kind: str, found: JobInfo | None = None, **more: object) -> Scene:
    return Scene(Outcome(kind, "because"), found, **{"own_will": True, **more})


@pytest.mark.parametrize(
    ("name", "given", "code", "requeue"),
    [
        ("finished", scene("finished"), 0, False),
        ("a person stopped it", scene("stopped", job()), 0, False),
        ("USR2 or deadline, running", scene("requeue", job()), 75, True),
        ("TERM at the time limit (C22)", scene("requeue", job("COMPLETING", "TimeLimit"), own_will=False), 75, True),
        ("USR2, then TERM at the time limit", scene("requeue", job("COMPLETING", "TimeLimit")), 75, True),
        ("scancel", scene("requeue", job("COMPLETING"), own_will=False), 75, False),
        ("USR2, then scancel", scene("requeue", job("COMPLETING")), 75, False),
        ("TERM by hand while it runs", scene("requeue", job("RUNNING"), own_will=False), 75, False),
        ("TERM of a preemption with GraceTime", scene("requeue", job("RUNNING", preempt_time=5.0), own_will=False), 75, True),
        ("preempted, and Slurm has taken the job", scene("requeue", job("COMPLETING", preempt_time=5.0), own_will=False), 75, False),
        ("already requeued", scene("requeue", job("PENDING", "BeginTime")), 75, False),
        ("a segment", scene("requeue", job(), segment=True), 0, False),
        ("in the foreground", scene("requeue", job(), foreground=True), 75, False),
        ("without Slurm", scene("requeue", None), 75, False),
        ("stuck", scene("requeue", job(), stuck=3), 93, False),
        ("not yet stuck", scene("requeue", job(), stuck=2), 75, True),
        ("config", scene("config", job()), 78, False),
        ("fault", scene("failed", job()), 1, False),
        ("launch", scene("launch", job()), 1, False),
        ("node gone, Slurm takes the job", scene("node_failure", job("COMPLETING")), 75, False),
        ("node gone, Slurm has requeued", scene("node_failure", job("PENDING", "BeginTime")), 75, False),
        ("node gone, job left running", scene("node_failure", job()), 75, True),
        ("node gone in salloc", scene("node_failure", job(), foreground=True), 1, False),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_rows(name, given, code, requeue):
    end = decide_end(given)
    assert (end.code, end.requeue) == (code, requeue)
    assert end.why


def attempt(number: int, kind: str | None, durable: int | None, signal: str = "", job_id: str = "12") -> AttemptRecord:
    outcome = None if kind is None else Outcome(kind, "", last_durable_step=durable, signal=signal, step=None if signal == "TERM" else 5)
    return AttemptRecord(number, job_id, number - 1, 0.0, ("n1",), (), 1, 1, outcome=outcome)


@pytest.mark.parametrize(
    ("ends", "stuck"),
    [
        ([], 0),
        ([("requeue", None)], 1),
        ([("requeue", None), ("requeue", None), ("requeue", None)], 3),
        ([("requeue", 10), ("requeue", 10), ("requeue", 10)], 2),
        ([("requeue", 10), ("requeue", 20)], 0),
        ([("requeue", 10), (None, None), ("requeue", 10)], 1),
        ([("requeue", 10), ("failed", 10), ("requeue", 10)], 1),
        ([("requeue", None), ("requeue", None, "TERM"), ("requeue", None)], 2),
    ],
)
def test_attempts_without_a_newer_checkpoint_are_counted(ends, stuck):
    assert stuck_attempts([attempt(i + 1, *end) for i, end in enumerate(ends)]) == stuck


def test_a_job_that_goes_on_from_an_older_checkpoint_is_not_held_to_newer_ones():
    """Broken: after --resume 10 of a run at step 100 the job is not requeued until it has passed step 100 in one go."""
    before = [attempt(1, "requeue", 90), attempt(2, "requeue", 100)]
    assert stuck_attempts([*before, attempt(3, "requeue", 20, job_id="13"), attempt(4, "requeue", 30, job_id="13")]) == 0
    assert stuck_attempts([*before, *(attempt(n, "requeue", 20, job_id="13_2") for n in (3, 4, 5))]) == 2
