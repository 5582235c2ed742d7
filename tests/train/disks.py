"""Whole runs on file systems that get full, or read-only, or whose quota is used up, while they train: the ranks of test_disk."""

from __future__ import annotations

import errno
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from slurmtrain.checkpoint.staged import AsyncSaver
from slurmtrain.clock import SystemClock
from slurmtrain.errors import SlurmtrainError
from slurmtrain.rundir import RunDir
from slurmtrain.runtime.world import Standing
from slurmtrain.syscalls import SystemCalls
from slurmtrain.telemetry.sink import EventSink
from slurmtrain.train.loop import Loop
from slurmtrain.train.session import open_session
from slurmtrain.train.stopping import StopFlag
from tests.mpi_world import gloo_group
from tests.train.several import _numbered

HERE = "tests.train.disks"
BAD, GOOD = 3, 7
"""Before these steps the disk turns bad, and good again."""


@dataclass(frozen=True)
class Disturbed:
    """Attempt `number` of the run in a folder. `what`: "full", "fills" (while files are written), "read-only", "quota", or nothing.

    `mount`: of the small file system that the checkpoints lie on.
    """

    folder: Path
    what: str = ""
    mount: Path | None = None
    number: int = 1


def runs(attempts: list[Disturbed]):
    """How each ended, or the error that its rank raised."""
    torch.set_num_threads(1)
    gloo_group()
    endings = []
    for attempt in attempts:
        try:
            endings.append(_one(attempt))
        except SlurmtrainError as error:
            endings.append((type(error).__name__, str(error)))
        torch.use_deterministic_algorithms(mode=False)
        dist.barrier()
    return endings


def _one(attempt: Disturbed):
    run, clock, flag, rank = RunDir(attempt.folder), SystemClock(), StopFlag(), dist.get_rank()
    run.attempt(attempt.number).create()
    torch.manual_seed(1000 * attempt.number + rank)
    session = open_session(run, _numbered(run, attempt.number), flag, clock)
    if attempt.what:
        _disturb(session, attempt, rank)
    sink = EventSink(run.event_file(0), clock, attempt.number, rank) if rank == 0 else None
    ending = Loop(session, Standing(rank, "n1"), sink, clock).run()
    return ending.kind, ending.step


def _disturb(session, attempt: Disturbed, rank: int):
    inner, ballast = session.built.runner.train, attempt.mount / "ballast"
    if attempt.what == "fills":
        door = f"{HERE}:filling:{ballast}"
        if isinstance(session.saver, AsyncSaver):
            session.saver._link._door = door
        else:
            session.saver._calls = session.saver._committer._calls = filling(str(ballast))

    def train(batch, scale):
        step = session.progress.step + 1
        if step in {BAD, GOOD} and rank == 0:
            _at_rest(session.saver)
            turn = {"full": _fill, "fills": _wish, "read-only": _remount, "quota": _quota}[attempt.what]
            turn(attempt.mount, ballast, bad=step == BAD)
        return inner(batch, scale)

    session.built.runner.train = train


def _at_rest(saver):
    """Wait until this rank has heard how the save under way ended; it is told by `poll` all the same."""
    end = time.monotonic() + 30.0
    while isinstance(saver, AsyncSaver) and saver._save is not None:
        saver._hear(0.05)
        assert time.monotonic() < end


def _fill(_mount: Path, ballast: Path, *, bad: bool):
    """All but 60 kB."""
    if not bad:
        ballast.unlink()
        return
    fill(ballast)
    with ballast.open("r+b") as file:
        file.truncate(ballast.stat().st_size - 60_000)


def _wish(_mount: Path, ballast: Path, *, bad: bool):
    if bad:
        ballast.with_suffix(".wish").touch()
    else:
        ballast.with_suffix(".wish").unlink()
        ballast.unlink()


def _remount(mount: Path, _ballast: Path, *, bad: bool):
    for _ in range(100):
        if subprocess.run(["mount", "-o", f"remount,{'ro' if bad else 'rw'}", mount], capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.05)
    raise AssertionError("it is in use")


def _quota(mount: Path, _ballast: Path, *, bad: bool):
    (mount / "quota").write_text("1000 9" if bad else "- -")


def fill(ballast: Path):
    """Take all the room there is."""
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


class Filling(SystemCalls):
    """A disk that another fills when the first data file has been made, once there is a file BALLAST.wish."""

    def __init__(self, ballast: Path) -> None:
        self.ballast = ballast

    def create(self, path: Path) -> int:
        if path.suffix == ".h5" and self.ballast.with_suffix(".wish").exists():
            fill(self.ballast)
        return super().create(path)


def filling(word: str) -> Filling:
    return Filling(Path(word))
