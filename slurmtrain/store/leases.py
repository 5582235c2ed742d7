"""Who reads which checkpoint just now: retention leaves alone what somebody has leased, until the lease ends or is given back.

A lease is a file `checkpoints/.leases/step-SSSSSSSS.TOKEN.json`, {"v": 1, "by": "...", "until": unix seconds}; it needs no daemon and
no lock, works between machines, and a reader that was killed blocks nothing for ever. Retention looks for leases before and after it
has renamed a checkpoint, and takes the rename back where one has come meanwhile. On NFS a lease may be seen some seconds late.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slurmtrain.atomic import SystemDisk
from slurmtrain.clock import Clock, SystemClock
from slurmtrain.rundir import RunDir
from slurmtrain.syscalls import SYSTEM, Syscalls

LEASE_SECONDS = 6 * 3600.0
SKEW_SECONDS = 60.0
"""How far clocks of machines may be apart: a lease counts so much longer than it says."""
UNREADABLE_SECONDS = 3600.0
"""So long counts a file that cannot be read as a lease, from its last change on."""
_CLOCK = SystemClock()
_NAME = re.compile(r"\.?step-(\d{8,})\..+")


@contextmanager
def lease(
    run: RunDir, step: int, by: str, *, calls: Syscalls = SYSTEM, clock: Clock = _CLOCK, seconds: float = LEASE_SECONDS
) -> Iterator[str | None]:
    """Keep a checkpoint while the block runs, and at most for so long. `by`: who and what for, for people.

    Gives None, or a note where no lease could be written (another's run, a disk that is full): the block then reads without.
    """
    path, note = _write(run, step, by, clock.time() + seconds, calls)
    try:
        yield note
    finally:
        if note is None:
            with suppress(OSError):
                calls.unlink(path)


def pin(run: RunDir, step: int, by: str, seconds: float, *, calls: Syscalls = SYSTEM, clock: Clock = _CLOCK) -> str | None:
    """Keep a checkpoint for so long, past the end of this process. Gives None, or a note where that could not be written."""
    return _write(run, step, by, clock.time() + seconds, calls)[1]


def leased(run: RunDir, now: float, *, calls: Syscalls = SYSTEM) -> set[int]:
    """Steps that somebody has leased at this time, unix seconds; leases that have ended are swept. Raises OSError."""
    try:
        names = sorted(entry.name for entry in os.scandir(run.leases))
    except FileNotFoundError:
        return set()
    steps: set[int] = set()
    for name in names:
        form = _NAME.fullmatch(name)
        if form is None:
            continue
        if now <= _until(run.leases / name):
            if not name.startswith("."):  # one that is being written holds nothing yet
                steps.add(int(form[1]))
        else:
            with suppress(OSError):
                calls.unlink(run.leases / name)
    return steps


def _write(run: RunDir, step: int, by: str, until: float, calls: Syscalls) -> tuple[Path, str | None]:
    path = run.lease(step, secrets.token_hex(6))
    try:
        with suppress(FileExistsError):
            calls.mkdir(run.leases)
        SystemDisk(calls).write(path, json.dumps({"v": 1, "by": by, "until": until}).encode())
    except OSError as error:
        return path, f"{run.leases}: {error.strerror or error}: read without a lease, so the run may remove step {step} meanwhile"
    return path, None


def _until(path: Path) -> float:
    """When a lease ends, its grace included."""
    try:
        raw = json.loads(path.read_bytes())
        until = raw["until"]
        if type(until) in {int, float} and math.isfinite(until):
            return float(until) + SKEW_SECONDS
    except FileNotFoundError:
        return 0.0
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        pass
    try:
        return path.stat().st_mtime + UNREADABLE_SECONDS
    except OSError:
        return 0.0
