"""The state of a run, row by row: what files and Slurm say, and what a person reads."""

from __future__ import annotations

import time

import pytest

from slurmtrain.resilience.records import AttemptRecord, Outcome
from slurmtrain.resilience.state import Facts, run_state
from slurmtrain.slurm.types import JobInfo


def job(state: str, reason: str = "None", start: float | None = 100.0) -> JobInfo:
    return JobInfo("12", "llama", state, reason, start_time=start)


def attempt(kind: str = "", *, job_id: str = "12", t_end: float = 150.0, signal: str = "") -> AttemptRecord:
    outcome = Outcome(kind, f"because {kind}", t_end=t_end, signal=signal) if kind else None
    return AttemptRecord(1, job_id, 0, 100.0, ("n1",), (), 4, 4, outcome=outcome)


def facts(**known: object) -> Facts:
    return Facts(**{"job_id": "12", **known})


AT = time.strftime("%H:%M:%S", time.localtime(12_345))
ROWS = [
    ("finished", facts(finished=True, job=job("RUNNING")), "FINISHED", ""),
    ("submitted, waits", facts(job=job("PENDING", "Resources")), "PENDING", "Resources"),
    ("will never start", facts(job=job("PENDING", "PartitionConfig")), "PENDING", "not start as it is (PartitionConfig)"),
    ("held", facts(job=job("PENDING", "JobHeldUser")), "PENDING", "is held (JobHeldUser): scontrol release"),
    ("waits again", facts(job=job("PENDING", "BeginTime"), attempt=attempt("requeue")), "REQUEUED", "BeginTime"),
    (
        "may begin later",
        facts(job=job("PENDING", "BeginTime", 12_345.0), attempt=attempt("requeue")),
        "REQUEUED",
        f"eligible at {AT} (Slurm's",
    ),
    (
        "held: a prolog failed",
        facts(job=job("PENDING", "launch failed requeued held"), attempt=attempt("requeue")),
        "REQUEUED",
        "its start failed on a node, mostly by its prolog, and Slurm drains such a node: scontrol release 12 lets it go",
    ),
    ("held, in squeue's words", facts(job=job("PENDING", "launch_failed_requeued_held")), "PENDING", "scontrol release 12"),
    ("held by an administrator", facts(job=job("PENDING", "JobHeldAdmin")), "PENDING", "an administrator lets it go"),
    ("a dead dependency (C36)", facts(job=job("PENDING", "DependencyNeverSatisfied")), "PENDING", "will not start as it is"),
    ("a new job waits, an old one had failed", facts(job_id="13", job=job("PENDING"), attempt=attempt("failed")), "PENDING", ""),
    ("next segment waits", facts(job_id="12_2", job=job("PENDING"), attempt=attempt("requeue", job_id="12_1")), "REQUEUED", ""),
    ("starting", facts(job=job("RUNNING")), "RUNNING", "starting"),
    (
        "between two attempts",
        facts(job=job("RUNNING"), attempt=attempt("failed"), going_on=True),
        "RUNNING",
        "attempt 1 ended: because failed",
    ),
    ("no rank spoke, another attempt follows", facts(job=job("RUNNING"), attempt=attempt("launch"), going_on=True), "RUNNING", "attempt 1"),
    ("failed, the supervisor has ended", facts(job=job("RUNNING"), attempt=attempt("failed")), "FAILED", "because failed"),
    ("failed, a requeue was asked", facts(job=job("RUNNING"), attempt=attempt("failed"), requeue_asked=True), "REQUEUED", "because failed"),
    (
        "the budget is spent",
        facts(job=job("RUNNING"), attempt=attempt("failed"), going_on=True, over="3 x"),
        "FAILED",
        "not started again: 3 x",
    ),
    (
        "the budget was spent",
        facts(attempt=attempt("requeue", signal="USR2"), over="3 x"),
        "FAILED",
        "because requeue; not started again: 3 x",
    ),
    ("failed, the job was killed with its supervisor", facts(job=job("FAILED"), attempt=attempt("failed"), going_on=True), "FAILED", ""),
    ("runs", facts(job=job("RUNNING"), attempt=attempt()), "RUNNING", ""),
    ("runs, asked to stop", facts(job=job("RUNNING"), attempt=attempt(), stop=True), "RUNNING", "STOP"),
    ("about to be requeued", facts(job=job("RUNNING"), attempt=attempt("requeue")), "REQUEUED", "because"),
    ("started again, no attempt yet", facts(job=job("RUNNING", start=200.0), attempt=attempt("requeue")), "RUNNING", ""),
    ("waits for Slurm's word on a node", facts(job=job("RUNNING"), attempt=attempt("node_failure")), "REQUEUED", "because"),
    ("failed in a job that is about to end", facts(job=job("COMPLETING"), attempt=attempt("failed")), "FAILED", "because failed"),
    ("scancelled, completing", facts(job=job("COMPLETING"), attempt=attempt("requeue")), "RUNNING", "because requeue"),
    ("cancelled, completing", facts(job=job("COMPLETING"), attempt=attempt("requeue"), cancelled=True), "CANCELLED", "person"),
    ("cancelled, Slurm did not hear it", facts(job=job("PENDING"), cancelled=True), "PENDING", ""),
    ("cancelled, its ranks were killed", facts(attempt=attempt("failed"), cancelled=True), "CANCELLED", "person"),
    ("Ctrl-C twice, without Slurm", facts(job_id="", attempt=attempt("failed", job_id=""), answer="none", cancelled=True), "CANCELLED", ""),
    ("cancelled, Slurm has not begun", facts(job=job("RUNNING"), attempt=attempt(), cancelled=True), "RUNNING", ""),
    ("ended in salloc", facts(job=job("RUNNING"), attempt=attempt("requeue"), foreground=True), "STOPPED", "because requeue"),
    ("a person stopped it", facts(job=job("COMPLETED"), attempt=attempt("stopped"), stop=True), "STOPPED", "because stopped"),
    ("stopped while it waited", facts(job=job("CANCELLED"), stop=True), "STOPPED", "before it started"),
    ("cancelled", facts(job=job("CANCELLED"), attempt=attempt("requeue", signal="TERM"), cancelled=True), "CANCELLED", "person"),
    ("scancel, Slurm remembers", facts(job=job("CANCELLED"), attempt=attempt("requeue", signal="TERM")), "CANCELLED", "Slurm"),
    ("scancel, Slurm has forgotten", facts(attempt=attempt("requeue", signal="TERM")), "CANCELLED", "TERM"),
    ("scancel of a job that waited, Slurm remembers", facts(job=job("CANCELLED")), "CANCELLED", ""),
    ("stopped for a requeue that was refused", facts(attempt=attempt("requeue", signal="USR2")), "STOPPED", "because requeue"),
    ("failed, no accounting (C6)", facts(attempt=attempt("failed")), "FAILED", "because failed"),
    ("wrong configuration", facts(job=job("FAILED"), attempt=attempt("config")), "FAILED", "because config"),
    ("supervisor killed", facts(job=job("OUT_OF_MEMORY"), attempt=attempt()), "FAILED", "OUT_OF_MEMORY"),
    ("gone without a word", facts(attempt=attempt()), "FAILED", "left no word"),
    (
        "its log tells",
        facts(job=job("FAILED"), log="no interpreter on n1"),
        "FAILED",
        "its start left no word; its log ends: no interpreter on n1",
    ),
    (
        "a new job died at once, an old one had failed",
        facts(job_id="13", job=job("FAILED"), attempt=attempt("failed")),
        "FAILED",
        "start left",
    ),
    ("a new job died at once, forgotten", facts(job_id="13", attempt=attempt("requeue")), "FAILED", "job 13 has ended"),
    ("never began", facts(job=job("FAILED")), "FAILED", "FAILED"),
    ("never submitted", facts(job_id=""), "PENDING", "no job"),
    ("Slurm is silent, attempt runs", facts(answer="silent", attempt=attempt()), "RUNNING", "does not answer"),
    ("Slurm is silent, nothing yet", facts(answer="silent"), "PENDING", "does not answer"),
    ("Slurm is silent, attempt failed", facts(answer="silent", attempt=attempt("failed")), "FAILED", "because failed"),
    ("local, runs", facts(job_id="", answer="none", attempt=attempt(job_id=""), process=True), "RUNNING", ""),
    (
        "local, between two attempts",
        facts(job_id="", answer="none", attempt=attempt("failed", job_id=""), process=True, going_on=True),
        "RUNNING",
        "",
    ),
    ("local, elsewhere", facts(job_id="", answer="none", attempt=attempt(job_id="")), "RUNNING", "another host"),
    ("local, killed", facts(job_id="", answer="none", attempt=attempt(job_id=""), process=False), "FAILED", "without a word"),
    ("local, stopped", facts(job_id="", answer="none", attempt=attempt("stopped", job_id="")), "STOPPED", "because stopped"),
]


@pytest.mark.parametrize(("name", "given", "state", "says"), ROWS, ids=[row[0] for row in ROWS])
def test_rows(name, given, state, says):
    found = run_state(given)
    assert found.state == state
    assert says in found.reason
    assert found.over == (state in {"STOPPED", "FINISHED", "FAILED", "CANCELLED"})
