"""What the supervisor does when an attempt is over: its exit code, and whether it asks Slurm for a requeue. Pure.

| outcome | where | requeue asked | code |
|---|---|---|---|
| finished, stopped | anywhere | no | 0 |
| requeue | in the foreground, or without Slurm | no | 75 |
| requeue | a segment of an array | no: the next segment goes on | 0 |
| requeue | no newer checkpoint in the last `limit` attempts | no | 93 |
| requeue | USR2 or the deadline, job RUNNING | once | 75 |
| requeue | job no longer RUNNING, Reason=TimeLimit | once | 75 |
| requeue | job RUNNING in the GraceTime of a preemption: to end now without asking would be its end for good | once | 75 |
| requeue | TERM by hand, job RUNNING | no | 75 |
| requeue | anything else (scancel, preemption without GraceTime: Slurm has decided) | no | 75 |
| config | anywhere | no | 78 |
| failed, launch | anywhere | no | 1 |
| node_failure | Slurm has taken the job back, or is about to | no | 75 |
| node_failure | Slurm left the job RUNNING past its own limit | once | 75 |
| node_failure | in the foreground, or without Slurm | no | 1 |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurmtrain.errors import EXIT_CONFIG, EXIT_FAULT, EXIT_NO_RESTART, EXIT_OK, EXIT_TEMPFAIL
from slurmtrain.resilience.records import AttemptRecord, Outcome
from slurmtrain.slurm.types import JobInfo

NO_PROGRESS_LIMIT = 3
"""Attempts in a row that end for a requeue without a newer durable checkpoint."""


@dataclass(frozen=True)
class Scene:
    """All that the decision needs. `job`: Slurm's word after the attempt's end (None: no Slurm, or no answer)."""

    outcome: Outcome
    job: JobInfo | None
    own_will: bool
    """The stop was asked by USR2 (heard while the job ran) or by the deadline."""
    foreground: bool = False
    segment: bool = False
    stuck: int = 0
    """Attempts in a row without a newer checkpoint, this one included."""


@dataclass(frozen=True)
class End:
    """The code, whether `scontrol requeue` comes last, and the line that says why."""

    code: int
    requeue: bool = False
    why: str = ""


def decide_end(scene: Scene) -> End:
    """The table above."""
    kind = scene.outcome.kind
    if kind in {"finished", "stopped"}:
        return End(EXIT_OK, why="the run is complete" if kind == "finished" else "a person asked for it: not started again")
    if kind == "config":
        return End(EXIT_CONFIG, why="wrong configuration: not started again")
    if kind == "requeue":
        return _after_stop(scene)
    if kind == "node_failure" and scene.job is not None and not scene.foreground:
        if scene.job.state == "RUNNING":
            return End(EXIT_TEMPFAIL, requeue=True, why="Slurm keeps the job running without its node: asking for a requeue")
        return End(EXIT_TEMPFAIL, why="Slurm requeues the job itself")
    return End(EXIT_FAULT, why="a fault: not started again")


def _after_stop(scene: Scene) -> End:
    job = scene.job
    if scene.foreground or job is None:
        return End(EXIT_TEMPFAIL, why="stopped at a checkpoint: start it again to go on")
    if scene.segment:
        return End(EXIT_OK, why="stopped at a checkpoint: the next segment goes on")
    running, timed_out = job.state == "RUNNING", job.reason == "TimeLimit"
    if running and not (scene.own_will or job.in_grace):
        return End(EXIT_TEMPFAIL, why="TERM by hand: no requeue asked (USR2 asks for one); go on by `slurmtrain submit --resume`")
    if not running and not timed_out:
        return End(EXIT_TEMPFAIL, why=f"no requeue asked: Slurm has decided (state {job.state}, reason {job.reason or 'None'})")
    if scene.stuck >= NO_PROGRESS_LIMIT:
        return End(EXIT_NO_RESTART, why=f"not requeued: {scene.stuck} attempts in a row brought no newer checkpoint")
    return End(EXIT_TEMPFAIL, requeue=True, why="requeue")


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
