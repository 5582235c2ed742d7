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
| a fault | in_place, no notice of the end, enough good nodes, time for a start and a save; a dead node: --no-kill | another one | - | - |
| a fault | in the foreground, or without Slurm | end | no | 1 |
| a fault | a segment of an array, a link of a chain | end: the next one goes on | no | 1 |
| a fault | else | end | once | 75 |

A fault: failed, launch, node_failure; and a stop for a requeue that was asked because of a fault (a slow node).
"""

from __future__ import annotations

from dataclasses import dataclass

from slurmtrain.errors import EXIT_CONFIG, EXIT_FAULT, EXIT_NO_RESTART, EXIT_OK, EXIT_TEMPFAIL
from slurmtrain.resilience.budget import Allowed, Exhausted
from slurmtrain.resilience.records import Outcome
from slurmtrain.slurm.types import JobInfo
from slurmtrain.telemetry.causes import NOBODYS_FAULT
from slurmtrain.units import counted


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
    budget: Allowed | Exhausted = Allowed()  # noqa: RUF009 a frozen value
    cancelled: bool = False
    """A person cancelled since the run was submitted."""
    good: int = 0
    needed: int = 0
    no_kill: bool = False
    in_place: bool = False
    time_left_s: float | None = None
    needed_s: float = 60.0


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


_COMPLETE: dict[str, End] = {
    "finished": End(EXIT_OK, why="the run is complete"),
    "stopped": End(EXIT_OK, why="a person asked for it: not started again"),
    "config": End(EXIT_CONFIG, why="wrong configuration: not started again"),
}


@dataclass(frozen=True)
class Again:
    """Another attempt in this allocation, after a pause."""

    delay_s: float
    why: str


def decide_end(scene: Scene) -> End | Again:
    """The table above."""
    over = _over(scene)
    if over is not None:
        return over
    asked = scene.outcome.kind == "requeue" and (scene.outcome.category is None or scene.outcome.category in NOBODYS_FAULT)
    return _after_stop(scene) if asked else _after_fault(scene)


def _over(scene: Scene) -> End | None:
    """The end of a run that is complete, is refused, or was ended by a person."""
    kind, category = scene.outcome.kind, scene.outcome.category
    if kind in _COMPLETE:
        return _COMPLETE[kind]
    if scene.cancelled or category == "cancelled" or scene.outcome.signal == "INT":
        return End(EXIT_TEMPFAIL if kind == "requeue" else EXIT_FAULT, why="a person ended it: not started again")
    return End(EXIT_FAULT, why="a person asked for a stop: not started again") if category == "stopped" and kind != "requeue" else None


def _after_stop(scene: Scene) -> End:
    job = scene.job
    if scene.foreground or job is None:
        return End(EXIT_TEMPFAIL, why="stopped at a checkpoint: start it again to go on")
    if scene.segment:
        return End(EXIT_OK, why="stopped at a checkpoint: the next segment goes on")
    if isinstance(scene.budget, Exhausted):
        return _spent(scene.budget)
    return _next_link(scene) if scene.chain else _by_requeue(scene, job)


def _by_requeue(scene: Scene, job: JobInfo) -> End:
    running, timed_out = job.state == "RUNNING", job.reason == "TimeLimit"
    if running and not (scene.own_will or job.in_grace):
        how = "TERM by hand" if scene.outcome.signal == "TERM" else "a signal to the ranks alone"
        return End(EXIT_TEMPFAIL, why=f"{how}: no requeue asked (scancel -b -s USR2 asks for one); go on by `slurmtrain submit --resume`")
    if not running and not timed_out:
        return End(EXIT_TEMPFAIL, why=f"no requeue asked: Slurm has decided (state {job.state}, reason {job.reason or 'None'})")
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
    if "node_failure" in {scene.outcome.kind, scene.outcome.category} and goes and not scene.foreground:
        whose = "Slurm ends this link: the next one goes on" if scene.chain else "Slurm requeues the job itself"
        return End(EXIT_TEMPFAIL, why=whose, waits=not scene.chain)
    if isinstance(scene.budget, Exhausted):
        return _spent(scene.budget)
    if job is not None and (goes or job.in_grace):
        return _job_goes(scene, job)
    if scene.outcome.signal == "TERM":
        return End(EXIT_FAULT, why="TERM by hand: not started again; go on by `slurmtrain submit --resume`")
    short = _why_not_here(scene, scene.budget)
    return _elsewhere(scene, short, scene.budget.delay_s) if short else Again(scene.budget.delay_s, "again in this allocation")


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


def _elsewhere(scene: Scene, short: str, delay_s: float = 0.0) -> End:
    if scene.foreground or scene.job is None:
        return End(EXIT_FAULT, why=f"not started again: {short}")
    if scene.segment or (scene.chain and not scene.last_link):
        return End(EXIT_FAULT, why=f"{short}: the next {'link' if scene.chain else 'segment'} goes on")
    if scene.chain:
        return End(EXIT_FAULT, why=f"{short}, and this was the last link: go on by `slurmtrain submit --resume`")
    return End(EXIT_TEMPFAIL, requeue=True, why=f"{short}: requeue", delay_s=delay_s)
