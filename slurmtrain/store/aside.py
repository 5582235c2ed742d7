"""Checkpoints set aside: no reader finds them any more, nobody deletes them; a person may look into them, or move one back."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.clock import Clock, SystemClock
from slurmtrain.rundir import RunDir, aside_step
from slurmtrain.syscalls import SYSTEM, Syscalls, write_new

NOTE_NAME = "aside.json"
_CLOCK = SystemClock()


@dataclass(frozen=True)
class Aside:
    """One that was set aside: step, number from 1, folder, why, when (unix seconds); nothing and 0 where no note could be left."""

    step: int
    number: int
    folder: Path
    why: str = ""
    t: float = 0.0


def set_aside(run: RunDir, step: int, why: str, *, calls: Syscalls = SYSTEM, clock: Clock = _CLOCK) -> Path:
    """Rename a checkpoint so that it is listed no more; its new folder, which says why in `aside.json` if it can be written.

    Raises OSError where there is no such checkpoint or it cannot be renamed.
    """
    number = max((one.number for one in asides(run) if one.step == step), default=0) + 1
    while True:
        folder = run.set_aside(step, number)
        try:
            if os.path.lexists(folder):  # a folder that is empty would be replaced
                raise FileExistsError
            calls.rename(run.checkpoint(step), folder)
            break
        except OSError as error:
            if not isinstance(error, FileExistsError) and error.errno not in {errno.ENOTEMPTY, errno.ENOTDIR}:
                raise
            number += 1
    calls.fsync_dir(run.checkpoints)
    with suppress(OSError):
        write_new(calls, folder / NOTE_NAME, json.dumps({"v": 1, "why": why, "t": clock.time()}).encode())
    return folder


def put_back(run: RunDir, step: int, folder: Path, *, calls: Syscalls = SYSTEM) -> None:
    """Take back what `set_aside` did and gave. Raises OSError, also where there is a checkpoint of this step again."""
    if os.path.lexists(run.checkpoint(step)):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(run.checkpoint(step)))
    with suppress(OSError):
        calls.unlink(folder / NOTE_NAME)
    calls.rename(folder, run.checkpoint(step))
    calls.fsync_dir(run.checkpoints)


def asides(run: RunDir) -> list[Aside]:
    """Those that were set aside, by step and number. Raises OSError."""
    try:
        paths = [Path(entry.path) for entry in os.scandir(run.checkpoints)]
    except FileNotFoundError:
        return []
    found = [(step, int(path.name.rpartition("-")[2]), path) for path in paths if (step := aside_step(path.name)) is not None]
    return [Aside(step, number, path, *_note(path)) for step, number, path in sorted(found)]


def _note(folder: Path) -> tuple[str, float]:
    try:
        said = json.loads((folder / NOTE_NAME).read_bytes())
        return str(said["why"]), float(said["t"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return "", 0.0
