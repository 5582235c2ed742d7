"""What an agent sees on its node: the ranks' signs of life in the node's memory and their processes; and whether the shared folder
answers, which a thread finds out, because whoever asks a folder that stands still stands still with it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path

import psutil

from slurmtrain.clock import Clock
from slurmtrain.resilience.agentwire import ProcessState, RankSight
from slurmtrain.telemetry.heartbeat import Beat

_STOPPED = frozenset({psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP})
_GONE = frozenset({psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD})


class Processes:
    """The processes of ranks, by pid: one that was seen once is not confused with a later one of its number."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}

    def state(self, pid: int) -> ProcessState:
        try:
            process = self._known.setdefault(pid, psutil.Process(pid))
            status = process.status() if process.is_running() else psutil.STATUS_DEAD
        except psutil.AccessDenied:
            return "runs"
        except psutil.Error:
            return "gone"
        if status in _GONE:
            return "gone"
        return "stopped" if status in _STOPPED else "runs"


def sights_of(beats: Iterable[Beat], now: float, processes: Processes) -> tuple[RankSight, ...]:
    """`now`: of the same monotonic clock as the beats."""
    return tuple(
        RankSight(
            beat.rank,
            beat.pid,
            processes.state(beat.pid),
            beat.phase,
            beat.step,
            round(now - beat.t, 3),
            round(now - beat.since, 3),
            beat.entered,
            round(beat.work_s, 4),
        )
        for beat in sorted(beats, key=lambda one: one.rank)
    )


def touch(file: Path) -> None:
    """Open a file that is there as one that is to be written, and leave it as it is. Raises OSError.

    Opening waits for the file system's server, and O_CREAT also where a file system takes no writes for the moment (frozen): what
    a rank would wait for when it saves. Nothing is written, and nothing made: a file that is missing is an error.
    """
    os.stat(file)  # noqa: PTH116 no Path: this runs for ever and often
    os.close(os.open(file, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC))


class FolderProbe:
    """Asks the shared folder every `every_s`, in a thread. `file`: one of the run that is always there."""

    def __init__(self, file: Path, clock: Clock, every_s: float) -> None:
        self._file, self._clock, self._every_s = file, clock, every_s
        self._since: float | None = None
        self._leave = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="folder", daemon=True).start()

    def stop(self) -> None:
        self._leave.set()

    def stall_s(self, now: float) -> float:
        """For how long it has not answered: 0 when the last question was answered, or the one that is under way has been for a second."""
        since = self._since
        waited = 0.0 if since is None else now - since
        return waited if waited >= 1.0 else 0.0

    def ask(self) -> None:
        """One question; a folder that is gone does not answer either."""
        if self._since is None:
            self._since = self._clock.monotonic()
        try:
            touch(self._file)
        except OSError:
            return
        self._since = None

    def _run(self) -> None:
        while not self._leave.is_set():
            self.ask()
            self._clock.wait(self._leave, self._every_s)
