"""What state a run is in: a pure function of its folder's files and of Slurm's word, either of which may be missing.

| what is known | state |
|---|---|
| FINISHED is there | FINISHED |
| the job waits, and has made no attempt yet | PENDING |
| the job waits, and has made one | REQUEUED |
| the job runs, and its newest attempt has not ended (or ended before this start) | RUNNING |
| the job runs, its attempt ended by a fault, and the supervisor has not said its own end | RUNNING: it goes on, or will say why not |
| the job runs, and its attempt was stopped for a requeue, or one was asked for | REQUEUED |
| the budget is spent | FAILED, and why it is not started again |
| no job; STOP is there, or the newest attempt ended because a person asked, or for a requeue that did not come | STOPPED |
| no job; a person cancelled it (whatever end its ranks then came to), or Slurm says so | CANCELLED |
| no job; the newest attempt ended otherwise, or without a word | FAILED |
| Slurm does not answer | as the files tell, and the reason says so |
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Literal

from slurmtrain.resilience.records import AttemptRecord, Outcome
from slurmtrain.slurm.types import JobInfo

StateName = Literal["PENDING", "RUNNING", "REQUEUED", "STOPPED", "FINISHED", "FAILED", "CANCELLED"]
OVER: frozenset[StateName] = frozenset({"STOPPED", "FINISHED", "FAILED", "CANCELLED"})
"""States that change only when a person does something."""
Answer = Literal["yes", "silent", "none"]
"""Slurm answered, did not, or there is none for this run."""


@dataclass(frozen=True)
class Facts:
    """`attempt`: the newest with a record; `job`: Slurm's word on the run's newest job (None: it knows it no more).

    `cancelled`: a person cancelled since the last submission; `foreground`: it was last started by `slurmtrain run`; `process`: whether
    the supervisor's process lives (None: it cannot be seen from here); `log`: the last line of the job's log, where its end left no word;
    `going_on`: the supervisor of the newest attempt has not said that it has ended; `requeue_asked`: its last act was a requeue;
    `over`: why the run is not started again, where its budget is spent.
    """

    finished: bool = False
    stop: bool = False
    attempt: AttemptRecord | None = None
    job_id: str = ""
    job: JobInfo | None = None
    answer: Answer = "yes"
    cancelled: bool = False
    foreground: bool = False
    process: bool | None = None
    log: str = ""
    going_on: bool = False
    requeue_asked: bool = False
    over: str = ""

    @property
    def outcome(self) -> Outcome | None:
        return self.attempt.outcome if self.attempt else None

    @property
    def attempt_is_of_job(self) -> bool:
        """Whether the newest attempt was made by this job, or by another member of its array."""
        return self.attempt is not None and _array(self.attempt.job_id) == _array(self.job_id)


@dataclass(frozen=True)
class RunState:
    """One word, and one line of why."""

    state: StateName
    reason: str

    @property
    def over(self) -> bool:
        return self.state in OVER


def run_state(facts: Facts) -> RunState:
    """The table above."""
    if facts.finished:
        return RunState("FINISHED", "all steps done")
    if facts.job is not None and not facts.job.ended:
        return _alive(facts, facts.job)
    if facts.answer == "silent" and facts.job_id:
        return _unseen(facts)
    if not facts.job_id and facts.attempt is not None and (facts.outcome is None or (facts.process and _between(facts))):
        return _local(facts)
    return _ended(facts)


def _array(job_id: str) -> str:
    return job_id.partition("_")[0]


def _between(facts: Facts) -> bool:
    """Whether an attempt has ended by a fault, and its supervisor is about to begin another, or to say why not."""
    return facts.going_on and facts.outcome is not None and facts.outcome.kind in {"failed", "launch"} and not facts.over


def _alive(facts: Facts, job: JobInfo) -> RunState:
    outcome = facts.outcome if facts.attempt_is_of_job else None
    # A job that waits was not cancelled, whatever the history says: Slurm did not hear it.
    if facts.cancelled and job.state != "PENDING" and (job.state != "RUNNING" or outcome is not None):
        return RunState("CANCELLED", "a person cancelled it")
    if job.state == "PENDING":
        return RunState("REQUEUED" if facts.attempt_is_of_job else "PENDING", _waits_for(job))
    if outcome is None or (job.start_time is not None and outcome.t_end < job.start_time):
        return RunState("RUNNING", _running(facts, job))
    if job.state == "RUNNING" and _between(facts):
        return RunState("RUNNING", f"attempt {facts.attempt.attempt if facts.attempt else '?'} ended: {outcome.cause}")
    if (outcome.kind in {"requeue", "node_failure"} or facts.requeue_asked) and not facts.foreground and not facts.over:
        # While it completes, nobody but Slurm knows whether it will come back.
        return RunState("RUNNING" if job.state == "COMPLETING" else "REQUEUED", outcome.cause)
    return _by_outcome(outcome, facts.over)


_NEVER = {
    "PartitionConfig": "the partition has not so many nodes, or does not take such a job",
    "PartitionNodeLimit": "more nodes than the partition allows",
    "PartitionTimeLimit": "a longer time than the partition allows",
    "BadConstraints": "no node has what is asked",
    "DependencyNeverSatisfied": "the job that it depends on did not end as it should",
    "InvalidAccount": "no such account",
    "InvalidQOS": "no such QOS",
    "AssocMaxNodePerJobLimit": "more nodes than the account allows",
    "QOSMaxNodePerJobLimit": "more nodes than the QOS allows",
    "AssocMaxWallDurationPerJobLimit": "a longer time than the account allows",
    "QOSMaxWallDurationPerJobLimit": "a longer time than the QOS allows",
}
"""Slurm's reasons (job_reason_codes in its manual) that do not pass by waiting."""
_HELD_BY_START = re.compile(r"launch.failed.requeued.held", re.IGNORECASE)
"""Slurm's own words; blanks are underscores in some of its answers."""


def held_by_start(job: JobInfo | None) -> bool:
    """Whether Slurm holds a job because its start failed on a node (prolog_failure)."""
    return job is not None and job.state == "PENDING" and _HELD_BY_START.search(job.reason) is not None


def held(job: JobInfo) -> str:
    """Why a job that waits is held, and who lets it go; empty where it is not."""
    if job.state != "PENDING":
        return ""
    if held_by_start(job):
        return f"its start failed on a node, mostly by its prolog, and Slurm drains such a node: scontrol release {job.job_id} lets it go"
    return {"JobHeldUser": f"scontrol release {job.job_id} lets it go", "JobHeldAdmin": "an administrator lets it go"}.get(job.reason, "")


def _waits_for(job: JobInfo) -> str:
    if job.reason in _NEVER:
        return f"will not start as it is ({job.reason}): {_NEVER[job.reason]}; slurmtrain cancel, then --resume with other options"
    if who := held(job):
        return f"is held ({job.reason}): {who}"
    if job.reason == "BeginTime" and job.start_time is not None:
        return f"waits (BeginTime): eligible at {clock_time(job.start_time)} (Slurm's begin time)"
    return f"waits ({job.reason})" if job.reason and job.reason != "None" else "waits"


def clock_time(t: float) -> str:
    """Of seconds since the epoch, in local time."""
    return time.strftime("%H:%M:%S", time.localtime(t))


def _running(facts: Facts, job: JobInfo) -> str:
    if facts.stop:
        return "saving and finishing (STOP)"
    if job.state != "RUNNING":
        return job.state.lower()
    return "" if facts.attempt_is_of_job else "starting"


def _unseen(facts: Facts) -> RunState:
    said = "Slurm does not answer; this is what the run folder tells"
    if _between(facts):
        return RunState("RUNNING", said)
    if facts.outcome is not None and (facts.over or (facts.outcome.kind not in {"requeue", "node_failure"} and not facts.requeue_asked)):
        return _by_outcome(facts.outcome, facts.over)
    if facts.outcome is not None:
        return RunState("REQUEUED", said)
    return RunState("RUNNING" if facts.attempt_is_of_job else "PENDING", said)


def _local(facts: Facts) -> RunState:
    if facts.process is False:
        return RunState("FAILED", "the supervisor ended without a word")
    if facts.stop:
        return RunState("RUNNING", "saving and finishing (STOP)")
    return RunState("RUNNING", "" if facts.process else "on another host, as the run folder tells")


def _ended(facts: Facts) -> RunState:
    job, outcome = facts.job, facts.outcome if facts.attempt_is_of_job or not facts.job_id else None
    by_slurm = job is not None and job.state == "CANCELLED"
    if outcome is not None and outcome.kind not in {"requeue", "node_failure"}:
        by_person = facts.cancelled and outcome.kind in {"failed", "launch"}
        return RunState("CANCELLED", "a person cancelled it") if by_person else _by_outcome(outcome, facts.over)
    if facts.stop and not facts.cancelled:
        return RunState("STOPPED", outcome.cause if outcome else "a person stopped it before it started")
    if facts.cancelled or by_slurm:
        return RunState("CANCELLED", "a person cancelled it" if facts.cancelled else "Slurm: CANCELLED")
    if outcome is not None:
        return _by_outcome(outcome, facts.over) if facts.over else _not_requeued(outcome, job)
    if facts.attempt is None and not facts.job_id:
        return RunState("PENDING", "no job was submitted")
    word = f"Slurm: {job.state}" if job is not None else f"job {facts.job_id} has ended"
    said = f"; its log ends: {facts.log}" if facts.log else ""
    return RunState("FAILED", f"{word}, and its {'attempt' if facts.attempt_is_of_job else 'start'} left no word{said}")


def _not_requeued(outcome: Outcome, job: JobInfo | None) -> RunState:
    if outcome.kind == "node_failure":
        return RunState("FAILED", outcome.cause)
    if job is None and outcome.signal == "TERM":
        return RunState("CANCELLED", "ended by Slurm's TERM and not requeued: scancel, or preemption")
    ending = f"; Slurm: {job.state}" if job is not None and job.state != "COMPLETED" else ""
    return RunState("STOPPED", f"{outcome.cause}{ending}")


def _by_outcome(outcome: Outcome, over: str = "") -> RunState:
    if outcome.kind == "finished":
        return RunState("FINISHED", outcome.cause)
    if over and outcome.kind not in {"stopped", "config"}:
        return RunState("FAILED", f"{outcome.cause}; not started again: {over}")
    return RunState("STOPPED" if outcome.kind in {"stopped", "requeue"} else "FAILED", outcome.cause)
