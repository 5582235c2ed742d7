"""What the supervisor does when an attempt is over: another one at once, or the end with a code, and perhaps a requeue. Pure.

In this order; the first that holds is done. "Another one": `Again`, in the same allocation, after the budget's pause.

| attempt | where | done | requeue asked | code |
|---|---|---|---|---|
| finished, stopped | anywhere | end | no | 0 |
| config | anywhere | end | no | 78 |
| a person cancelled, Ctrl-C, or a stop that a person asked for and that failed | anywhere | end | no | 75 saved, 1 else |
| requeue | in the foreground, or without Slurm | end | no | 75 |
| requeue | no newer checkpoint in too many attempts (the budget is spent) | end | no | 93 |
| requeue | a segment of an array, a link of a chain | end: the next one goes on | no | 0; the last link 75 |
| requeue | USR2 or the deadline, job RUNNING | end | once | 75 |
| requeue | job no longer RUNNING, Reason=TimeLimit | end | once | 75 |
| requeue | job RUNNING in the GraceTime of a preemption: to end now without asking would be its end for good | end | once | 75 |
| requeue | TERM by hand, job RUNNING | end | no | 75 |
| requeue | anything else (scancel, preemption without GraceTime: Slurm has decided) | end | no | 75 |
| node_failure | Slurm has taken the job back, or is about to | end | no | 75 |
| a fault | its budget is spent | end | no | 93 |
| a fault | TERM by hand | end | no | 1 |
| a fault | job no longer RUNNING | end | Reason=TimeLimit: once; else no | 75, 1 |
| a fault | preempted, not yet taken | end | once | 75 |
| a fault | all of: in_place, no notice of the end, enough good nodes, time for a start and a save; of a dead node: --no-kill | another one | - | - |
| a fault | in the foreground, or without Slurm | end | no | 1 |
| a fault | a segment of an array, a link of a chain | end: the next one goes on | no | 1 |
| a fault | else | end | once | 75 |

A fault: failed, launch, node_failure; and a stop for a requeue that was asked because of a fault (a slow node).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurmtrain.errors import EXIT_CONFIG, EXIT_FAULT, EXIT_NO_RESTART, EXIT_OK, EXIT_TEMPFAIL
from slurmtrain.resilience.budget import Allowed, Exhausted
from slurmtrain.resilience.records import AttemptRecord, Outcome
from slurmtrain.slurm.types import JobInfo
from slurmtrain.telemetry.causes import NOBODYS_FAULT
from slurmtrain.units import counted

NO_PROGRESS_LIMIT = 3
"""Attempts in a row that end for a requeue without a newer durable checkpoint."""


@dataclass(frozen=True)
class Scene:
    """All that the decision needs. `job`: Slurm's word after the attempt's end (None: no Slurm, or the job is unknown to it).

    `good`: nodes of this allocation that may be used; `needed`: by a world; `no_kill`: the job outlives its nodes;
    `time_left_s`: until the job's limit (None: it has none); `needed_s`: what a start, a step and a save take.
    """

    outcome: Outcome
    job: JobInfo | None
    own_will: bool
    """The stop was asked by USR2 (heard while the job ran) or by the deadline."""
    foreground: bool = False
    segment: bool = False
    """A member of `slurm.array`."""
    chain: bool = False
    """A link of `slurm.continuation = "chain"`."""
    last_link: bool = False
    budget: Allowed | Exhausted | None = None
    """None: faults are not followed by another start."""
    cancelled: bool = False
    """A person cancelled since the run was submitted."""
    good: int = 0
    needed: int = 0
    no_kill: bool = False
    in_place: bool = False
    time_left_s: float | None = None
    needed_s: float = 60.0
    stuck: int = 0
    """Attempts in a row without a newer checkpoint, this one included."""


@dataclass(frozen=True)
class End:
    """The code, whether `scontrol requeue` comes last, and the line that says why.

    `waits`: Slurm itself will requeue the job; `delay_s`: how long it shall wait then, or after our requeue, at least.
    """

    code: int
    requeue: bool = False
    why: str = ""
    waits: bool = False
    delay_s: float = 0.0


@dataclass(frozen=True)
class Again:
    """Another attempt in this allocation, after a pause."""

    delay_s: float
    why: str


def decide_end(scene: Scene) -> End | Again:
    """The table above."""
    kind = scene.outcome.kind
    if kind in {"finished", "stopped"}:
        return End(EXIT_OK, why="the run is complete" if kind == "finished" else "a person asked for it: not started again")
    if kind == "config":
        return End(EXIT_CONFIG, why="wrong configuration: not started again")
    if scene.cancelled or scene.outcome.category == "cancelled" or scene.outcome.signal == "INT":
        return End(EXIT_TEMPFAIL if kind == "requeue" else EXIT_FAULT, why="a person ended it: not started again")
    if scene.outcome.category == "stopped" and kind != "requeue":
        return End(EXIT_FAULT, why="a person asked for a stop: not started again")
    if kind == "requeue" and (scene.outcome.category in NOBODYS_FAULT or scene.outcome.category is None):
        return _after_stop(scene)
    return _after_fault(scene)


def _after_stop(scene: Scene) -> End:
    job = scene.job
    if scene.foreground or job is None:
        return End(EXIT_TEMPFAIL, why="stopped at a checkpoint: start it again to go on")
    if scene.segment:
        return End(EXIT_OK, why="stopped at a checkpoint: the next segment goes on")
    if isinstance(scene.budget, Exhausted):
        return _spent(scene.budget)
    if scene.chain:
        return _next_link(scene)
    running, timed_out = job.state == "RUNNING", job.reason == "TimeLimit"
    if running and not (scene.own_will or job.in_grace):
        return End(EXIT_TEMPFAIL, why="TERM by hand: no requeue asked (USR2 asks for one); go on by `slurmtrain submit --resume`")
    if not running and not timed_out:
        return End(EXIT_TEMPFAIL, why=f"no requeue asked: Slurm has decided (state {job.state}, reason {job.reason or 'None'})")
    if scene.budget is None and scene.stuck >= NO_PROGRESS_LIMIT:
        return End(EXIT_NO_RESTART, why=f"not requeued: {scene.stuck} attempts in a row brought no newer checkpoint")
    return End(EXIT_TEMPFAIL, requeue=True, why="requeue")


def _next_link(scene: Scene) -> End:
    if scene.last_link:
        return End(EXIT_TEMPFAIL, why="stopped at a checkpoint, and this was the last link: go on by `slurmtrain submit --resume`")
    return End(EXIT_OK, why="stopped at a checkpoint: the next link goes on")


def _spent(budget: Exhausted) -> End:
    return End(EXIT_NO_RESTART, why=f"not started again: {budget.why}")


def _after_fault(scene: Scene) -> End | Again:
    job = scene.job
    goes = job is not None and job.state != "RUNNING"
    if scene.outcome.kind == "node_failure" and goes and not scene.foreground:
        if scene.chain:
            return End(EXIT_TEMPFAIL, why="Slurm ends this link: the next one goes on")
        return End(EXIT_TEMPFAIL, why="Slurm requeues the job itself", waits=True)
    if scene.budget is None:
        return _without_budget(scene)
    if isinstance(scene.budget, Exhausted):
        return _spent(scene.budget)
    if scene.outcome.signal == "TERM" and not goes and not (job is not None and job.in_grace):
        return End(EXIT_FAULT, why="TERM by hand: not started again; go on by `slurmtrain submit --resume`")
    if job is not None and (goes or job.in_grace):
        return _job_goes(scene, job)
    short = _why_not_here(scene, scene.budget)
    if not short:
        return Again(scene.budget.delay_s, "again in this allocation")
    return _elsewhere(scene, short)


def _without_budget(scene: Scene) -> End:
    if scene.outcome.kind == "node_failure" and scene.job is not None and not scene.foreground:
        return End(EXIT_TEMPFAIL, requeue=True, why="Slurm keeps the job running without its node: asking for a requeue")
    return End(EXIT_FAULT, why="a fault: not started again")


def _job_goes(scene: Scene, job: JobInfo) -> End:
    if scene.segment or scene.chain or scene.foreground:
        return _elsewhere(scene, f"the job is {job.state}" if not job.in_grace else "the job is being preempted")
    if job.in_grace or job.reason == "TimeLimit":
        return End(EXIT_TEMPFAIL, requeue=True, why="requeue")
    return End(EXIT_FAULT, why=f"no requeue asked: Slurm has decided (state {job.state}, reason {job.reason or 'None'})")


def _why_not_here(scene: Scene, budget: Allowed) -> str:
    """Why there is no further attempt in this allocation; empty where there is one."""
    if scene.own_will:
        return "the job's end is near"
    if not scene.in_place:
        return "no start in place (recovery.in_place)"
    if scene.outcome.kind == "node_failure" and not (scene.no_kill or scene.job is None):
        return "a node is lost, and the job with it"
    if scene.good < scene.needed:
        return f"{counted(scene.good, 'good node')} of the allocation, {scene.needed} needed"
    if scene.time_left_s is not None and scene.time_left_s < budget.delay_s + scene.needed_s:
        return "the job ends too soon for a start and a save"
    return ""


def _elsewhere(scene: Scene, short: str) -> End:
    if scene.foreground or scene.job is None:
        return End(EXIT_FAULT, why=f"not started again: {short}")
    if scene.segment or (scene.chain and not scene.last_link):
        return End(EXIT_FAULT, why=f"{short}: the next {'link' if scene.chain else 'segment'} goes on")
    if scene.chain:
        return End(EXIT_FAULT, why=f"{short}, and this was the last link: go on by `slurmtrain submit --resume`")
    delay_s = scene.budget.delay_s if isinstance(scene.budget, Allowed) else 0.0
    return End(EXIT_TEMPFAIL, requeue=True, why=f"{short}: requeue", delay_s=delay_s)


def stuck_attempts(records: Sequence[AttemptRecord]) -> int:
    """How many of the newest attempts, in a row, were stopped for a requeue without a checkpoint newer than all before them.

    An attempt that Slurm took away (TERM) before its first step does not count. What an earlier job had counts for nothing: a person
    may have gone back to an older checkpoint, or begun anew, when the next one was submitted.
    """
    durable = [(r.outcome.last_durable_step or 0) if r.outcome else 0 for r in records]
    jobs = [r.job_id.partition("_")[0] for r in records]
    count = 0
    for index in reversed(range(len(records))):
        outcome = records[index].outcome
        if outcome is not None and outcome.signal == "TERM" and outcome.step is None:
            continue
        if outcome is None or outcome.kind != "requeue" or durable[index] > _most(durable, jobs, index):
            break
        count += 1
    return count


def _most(durable: Sequence[int], jobs: Sequence[str], index: int) -> int:
    """The newest step that an attempt's job had before it."""
    return max((step for step, job in zip(durable[:index], jobs[:index], strict=True) if job == jobs[index]), default=0)
