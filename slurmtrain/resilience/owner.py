"""One owner at a time: claiming the next attempt of a run.

The right to make attempt n is `attempts/NNNN/claim.json`, linked into place by one supervisor alone and never replaced, so that of
two jobs that start at once one wins and the other sees who. `owner.json` is the winner's claim under a fixed name: ranks read it
before they publish, and leave when the attempt in it is not their own. The owner of the newest claim is succeeded only when it
said itself that it has ended, when Slurm says that its job has ended, when it is this very job in an earlier start (Slurm counts
the restarts), when its process is gone from this same host, or when it is this process itself, which goes on to its next attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import psutil

from slurmtrain.atomic import Disk
from slurmtrain.clock import Clock
from slurmtrain.errors import OwnershipError, SlurmError
from slurmtrain.resilience.records import Owner, read_owner
from slurmtrain.rundir import RunDir
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.slurm.types import JobInfo

Word = Literal["take", "wait", "refuse"]
WAIT_S = 120.0
"""For a job of the past to leave COMPLETING, or for Slurm to answer."""
_POLL_S = 3.0


@dataclass(frozen=True)
class Sight:
    """What can be found out about the owner of the past. `job`: "unknown" where Slurm did not answer, None where it has forgotten the job.

    `process`: whether its supervisor lives; None where that cannot be seen from here.
    """

    job: JobInfo | Literal["unknown"] | None
    process: bool | None


def judge(old: Owner, me: Owner, sight: Sight) -> tuple[Word, str]:
    """Whether `me` may succeed `old`, and why not."""
    if old.ended:
        return "take", "it said that it has ended"
    if old.job_id and old.job_id != me.job_id:
        return _judge_job(sight.job)
    if old.job_id and old.restart_count < me.restart_count:
        return "take", "an earlier start of this job"
    if (old.host, old.pid) == (me.host, me.pid):
        return "take", "this very process"
    if sight.process is None:
        return "refuse", f"whether it lives on {old.host} cannot be seen from {me.host}"
    return ("refuse", "its process lives") if sight.process else ("take", "its process is gone")


def _judge_job(job: JobInfo | Literal["unknown"] | None) -> tuple[Word, str]:
    if job == "unknown":
        return "wait", "Slurm does not say whether its job has ended"
    if job is None or job.ended:
        return "take", "its job has ended"
    return ("wait" if job.state == "COMPLETING" else "refuse"), f"its job is {job.state}"


def process_lives(pid: int, claimed_at: float) -> bool:
    """Whether the process that claimed at that time (seconds since the epoch) lives here; a later one of its number does not count."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= claimed_at + 1
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def look_at(old: Owner, me: Owner, client: SlurmClient | None, lives: Callable[[int, float], bool]) -> Sight:
    """Ask this machine and, only where it matters, Slurm."""
    process = lives(old.pid, old.t) if old.host == me.host else None
    job: JobInfo | Literal["unknown"] | None = "unknown"
    if old.job_id and old.job_id != me.job_id and client is not None:
        try:
            job = client.job(old.job_id)
        except SlurmError:
            job = "unknown"
    return Sight(job, process)


def claim(
    run: RunDir,
    me: Owner,
    *,
    disk: Disk,
    clock: Clock,
    client: SlurmClient | None,
    lives: Callable[[int, float], bool] = process_lives,
    interrupted: Callable[[], bool] = lambda: False,
    wait_s: float = WAIT_S,
) -> Owner:
    """Become the owner of the run's next attempt; what was written to owner.json. `me.attempt` is ignored.

    Raises OwnershipError naming the owner when it has not ended (after waiting for one that is about to), OSError.
    """
    limit = clock.monotonic() + wait_s
    while True:
        number, free, holder = _newest(run)
        if holder is not None:
            word, why = judge(holder, me, look_at(holder, me, client, lives))
            if word == "wait" and clock.monotonic() < limit and not interrupted():
                clock.sleep(_POLL_S)
                continue
            if word != "take":
                raise OwnershipError(_refusal(run, holder, why))
        mine = replace(me, attempt=number if free else number + 1)
        folder = run.attempt(mine.attempt)
        folder.create()
        if disk.create_exclusive(folder.claim, mine.to_json()):
            disk.write(run.owner_json, mine.to_json())
            return mine


def _newest(run: RunDir) -> tuple[int, bool, Owner | None]:
    """Number of the newest attempt (0: none), whether it may still be claimed, and who holds it.

    The holder: its claim, in owner.json's later words where that is the same attempt. Whether it is free is looked at before the
    claim is read: a claim that comes in between is then lost against, never passed over.
    """
    number = max(run.attempt_numbers(), default=0)
    free = _unclaimed(run, number)
    holder = read_owner(run.attempt(number).claim) if number else None
    current = read_owner(run.owner_json)
    if holder is not None and current is not None and current.attempt == holder.attempt and current.pid == holder.pid:
        return number, free, current
    return number, free, holder


def _unclaimed(run: RunDir, number: int) -> bool:
    """Whether the newest attempt's folder was made by a supervisor that died before it could claim it."""
    return number > 0 and not run.attempt(number).claim.exists() and not run.attempt(number).attempt_json.exists()


def _refusal(run: RunDir, holder: Owner, why: str) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.t))
    return (
        f"{run.path}: this run belongs to {holder} since {since} ({why}); wait for its end, or end it by `slurmtrain cancel {run.name}`; "
        f"when it surely runs nowhere, remove {run.attempt(holder.attempt).claim}"
    )


def release(run: RunDir, owner: Owner, disk: Disk) -> None:
    """Say that this owner has ended; nothing is written when the run has another owner by now. Raises OSError."""
    if read_owner(run.owner_json) == owner:
        disk.write(run.owner_json, replace(owner, ended=True).to_json())
