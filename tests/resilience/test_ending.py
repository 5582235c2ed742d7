"""Exit code and requeue of every end: the table of the module, row by row."""

from __future__ import annotations

import pytest

from slurmtrain.resilience.budget import Allowed, Exhausted
from slurmtrain.resilience.ending import Again, Scene, decide_end
from slurmtrain.resilience.records import Outcome
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
        ("config", scene("config", job()), 78, False),
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


SPENT = Exhausted("3 attempts in a row brought no newer checkpoint")
HERE = {"budget": Allowed(20.0), "in_place": True, "good": 2, "needed": 2, "own_will": False}


def fault(kind: str = "failed", found: JobInfo | None = None, *, signal: str = "", **more: object) -> Scene:
    category = {"failed": "rank_crash", "launch": "launch_failure", "requeue": "hang"}.get(kind, kind)
    return Scene(Outcome(kind, "because", signal=signal, category=category), found or job(), **{**HERE, **more})


AGAIN = "again"
MPIEXEC = Scene(Outcome("failed", "because", category="rank_crash"), None, foreground=True, **HERE)


@pytest.mark.parametrize(
    ("name", "given", "done"),
    [
        ("a rank crashed", fault(), AGAIN),
        ("under mpiexec", MPIEXEC, AGAIN),
        ("in salloc", fault(foreground=True), AGAIN),
        ("a segment of an array", fault(segment=True), AGAIN),
        ("a link of a chain", fault(chain=True), AGAIN),
        ("no rank spoke", fault("launch"), AGAIN),
        ("a node is lost, the job outlives it", fault("node_failure", no_kill=True), AGAIN),
        ("a node is lost, and the job with it soon", fault("node_failure"), (75, True)),
        ("a node is lost, Slurm has taken the job", fault("node_failure", job("PENDING"), no_kill=True), (75, False)),
        (
            "Slurm's TERM came for a dead node",
            Scene(Outcome("requeue", "b", category="node_failure", signal="TERM"), job("PENDING"), **HERE),
            (75, False),
        ),
        ("a node of a link is lost", fault("node_failure", job("COMPLETING"), chain=True), (75, False)),
        ("a stop was asked because a node is slow", fault("requeue"), AGAIN),
        ("just enough time", fault(time_left_s=80.0, needed_s=60.0), AGAIN),
        ("too little time", fault(time_left_s=79.0, needed_s=60.0), (75, True)),
        ("too few good nodes", fault(good=1), (75, True)),
        ("too few good nodes in salloc", fault(good=1, foreground=True), (1, False)),
        ("too few good nodes under mpiexec", Scene(MPIEXEC.outcome, None, **{**HERE, "good": 1}), (1, False)),
        ("too few good nodes in a segment", fault(good=1, segment=True), (1, False)),
        ("too few good nodes in a link", fault(good=1, chain=True), (1, False)),
        ("in_place is off", fault(in_place=False), (75, True)),
        ("USR2 came too", fault(own_will=True), (75, True)),
        ("the budget is spent", fault(budget=SPENT), (93, False)),
        ("the budget is spent, in a link", fault(budget=SPENT, chain=True), (93, False)),
        ("the budget is spent, a stop for a requeue", scene("requeue", job(), budget=SPENT), (93, False)),
        ("within the budget, a stop for a requeue", scene("requeue", job(), budget=Allowed()), (75, True)),
        ("a link stopped at its time limit", scene("requeue", job(), budget=Allowed(), chain=True), (0, False)),
        ("the last link stopped at its time limit", scene("requeue", job(), budget=Allowed(), chain=True, last_link=True), (75, False)),
        ("preempted in between", fault(found=job("RUNNING", preempt_time=5.0)), (75, True)),
        ("the time limit in between", fault(found=job("COMPLETING", "TimeLimit")), (75, True)),
        ("scancel in between", fault(found=job("COMPLETING")), (1, False)),
        ("scancel of the allocation in between", fault(found=job("COMPLETING"), foreground=True), (1, False)),
        ("TERM by hand", fault(signal="TERM"), (1, False)),
        ("Ctrl-C twice", fault(signal="INT", foreground=True), (1, False)),
        ("slurmtrain cancel", fault(cancelled=True), (1, False)),
        ("a stop of a person that failed", Scene(Outcome("failed", "b", category="stopped"), job(), **HERE), (1, False)),
        ("scancel", Scene(Outcome("requeue", "b", category="cancelled", signal="TERM"), job("COMPLETING"), **HERE), (75, False)),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_rows_of_faults(name, given, done):
    end = decide_end(given)
    assert end.why
    if done == AGAIN:
        assert end == Again(20.0, end.why)
    else:
        assert (end.code, end.requeue) == done
