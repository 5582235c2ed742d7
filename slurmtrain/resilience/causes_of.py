"""Why an attempt ended, in one word (`telemetry.causes`). Pure; what a record's type says is believed before any words.

`kind` is what `classify` made of the end; in this order, the first that holds:

| kind | and | cause |
|---|---|---|
| finished | | finished |
| stopped | | stopped |
| config | | configuration |
| any other | a rank's own error | its record's category; by its words where it has none, else rank_crash |
| any other | a person cancelled (history) and TERM came; or Ctrl-C twice | cancelled |
| requeue, failed, launch | hang was found | hang |
| requeue | PreemptTime is set, or Slurm calls the job PREEMPTED | preempted |
| requeue | USR2, the deadline, Reason=TimeLimit, or Slurm calls the job TIMEOUT | time_limit |
| requeue | no TERM (the supervisor's own will) | time_limit |
| requeue | TERM while the job runs, or without Slurm: by hand | stopped |
| requeue | TERM, Reason=NodeDown, or a node of the job is down | node_failure |
| requeue | TERM, the job is ending, no reason is given, and Slurm counts no start more than ours: scancel | cancelled |
| requeue | TERM, anything else: Slurm took the job back, or a person requeued it | preempted |
| node_failure | | node_failure |
| failed, launch | Slurm tells of memory that ran out (a step's words, OUT_OF_MEMORY) | out_of_memory |
| failed | a person asked for the stop that was not obeyed | stopped |
| failed | the launcher alone was ended by a signal | launch_failure |
| failed | a rank ended with a code, by a signal, or without a word | by the last line of its output, else rank_crash |
| failed | only lost peers, and every rank left its record | network |
| launch | Slurm held the job because its start failed (a prolog) | prolog_failure |
| launch | the words of the error that hindered it | storage, out_of_memory, else launch_failure |
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurmtrain.resilience.classify import Evidence
from slurmtrain.resilience.records import OutcomeKind
from slurmtrain.slurm.types import JobInfo
from slurmtrain.telemetry.causes import Cause
from slurmtrain.telemetry.errorcause import cause_of_words
from slurmtrain.telemetry.exitfile import PEER_LOST, is_follower

_HELD = re.compile(r"launch.failed|JobHeldAdmin|JobLaunchFailure", re.IGNORECASE)
_AGREED: dict[OutcomeKind, Cause] = {"finished": "finished", "stopped": "stopped", "config": "configuration"}
_ENDING = frozenset({"COMPLETING", "CANCELLED"})
_NO_REASON = frozenset({"", "None"})


@dataclass(frozen=True)
class Around:
    """What surrounded an end. `job`: Slurm's word after it (None: no Slurm, or it has forgotten the job); `restarts`: of this start.

    `signal`: the strongest that was heard (INT, TERM, USR2, or empty); `own_will`: USR2 or the deadline asked for the stop;
    `cancelled`: a person cancelled since the run was submitted; `words`: of the error that hindered the start.
    """

    job: JobInfo | None = None
    restarts: int = 0
    signal: str = ""
    own_will: bool = False
    cancelled: bool = False
    words: str = ""


def cause_of(kind: OutcomeKind, evidence: Evidence | None, around: Around) -> Cause:
    """The table above; `evidence` is None where no rank was ever started."""
    known = _AGREED.get(kind) or (_own_error(evidence) if evidence is not None else None)
    if known is not None:
        return known
    if (around.cancelled and around.signal == "TERM") or (around.signal == "INT" and kind != "requeue"):
        return "cancelled"
    if kind == "node_failure":
        return "node_failure"
    if evidence is not None and evidence.hang is not None:
        return "hang"
    by_kind = {"requeue": _of_stop, "launch": _of_start}.get(kind, _of_failure)
    return by_kind(evidence, around)


def _own_error(e: Evidence) -> Cause | None:
    """Of the first rank with an error that is not a lost peer's."""
    own = [r for r in e.records.values() if r.kind == "error" and not is_follower(r.error)]
    if not own:
        return None
    first = min(own, key=lambda r: r.rank)
    return first.category or cause_of_words(first.error) or "rank_crash"


def _of_stop(e: Evidence | None, around: Around) -> Cause:
    job = around.job
    if job is not None and (job.preempt_time is not None or job.state == "PREEMPTED"):
        return "preempted"
    if around.own_will or (job is not None and (job.reason == "TimeLimit" or job.state == "TIMEOUT")):
        return "time_limit"
    if around.signal != "TERM":
        return "time_limit"
    if job is None or job.state == "RUNNING":
        return "stopped"
    if job.reason == "NodeDown" or job.state == "NODE_FAIL" or (e is not None and e.down):
        return "node_failure"
    return "cancelled" if job.state in _ENDING and job.restarts <= around.restarts and job.reason in _NO_REASON else "preempted"


def _of_start(e: Evidence | None, around: Around) -> Cause:
    if _memory(e, around):
        return "out_of_memory"
    if around.job is not None and around.job.state != "RUNNING" and _HELD.search(around.job.reason):
        return "prolog_failure"
    told = cause_of_words(around.words or (e.log if e is not None else ""))
    return told if told in {"storage", "out_of_memory"} else "launch_failure"


def _of_failure(e: Evidence | None, around: Around) -> Cause:
    if e is None:
        return "launch_failure"
    if _memory(e, around):
        return "out_of_memory"
    if e.asked in {"stop", "interrupt"}:
        return "stopped"
    if e.launcher_signal and not e.ended_because and not e.deaths:
        return "launch_failure"
    if e.missing():
        told = None if is_follower(e.log) or PEER_LOST in e.log else cause_of_words(e.log)
        return told or "rank_crash"
    return "network"


def _memory(e: Evidence | None, around: Around) -> bool:
    return (e is not None and bool(e.oom)) or (around.job is not None and around.job.state == "OUT_OF_MEMORY")
