"""Writing events: lines go through a queue to one writer thread; training never waits for the disk and never dies of it.

What a disk refuses (full, gone for a while) is kept, as many lines as the queue holds, and offered again until it is taken.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from slurmtrain.atomic import Disk, SystemDisk
from slurmtrain.clock import Clock
from slurmtrain.errors import one_line
from slurmtrain.telemetry.events import Event

QUEUE_LINES = 100_000
_BATCH_LINES = 1000
AGAIN_S = 1.0
"""After which what was refused is offered again."""


def _to_stderr(text: str) -> None:
    sys.stderr.write(text + "\n")


class EventSink:
    """Appends events of one process to one file; events of several attempts follow one another in it.

    `disk` and `report` are for tests and for callers with a log of their own; `report` gets one line, once, when an event is lost or has
    to wait.
    """

    def __init__(
        self, path: Path, clock: Clock, attempt: int, rank: int, *, disk: Disk | None = None, report: Callable[[str], None] = _to_stderr
    ) -> None:
        self.path = path
        self._clock, self._attempt, self._rank = clock, attempt, rank
        self._disk, self._report = disk or SystemDisk(), report
        self._lines: queue.Queue[str | None] = queue.Queue(QUEUE_LINES)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._done = threading.Event()
        self._torn = True  # another process may have died in the middle of the last line
        self._lost = 0
        self._kept: list[str] = []
        """Refused by the disk so far."""
        self._again_at = 0.0
        self._told = self._closed = False

    @property
    def lost(self) -> int:
        """Events that did not reach the file."""
        return self._lost

    def emit(self, kind: str, /, **fields: Any) -> None:
        """Queue an event; returns at once, raises nothing. After `close`, and when the queue is full, it is counted as lost."""
        if self._closed:
            self._lose(1, "the sink is closed")
            return
        try:
            line = Event(kind, self._clock.time(), self._attempt, self._rank, fields).to_line()
            self._start()
            self._lines.put_nowait(line)
        except queue.Full:
            self._lose(1, "the disk does not keep up")
        except (TypeError, ValueError) as error:
            self._lose(1, f"event {kind!r} is not plain JSON: {error}")

    def close(self, timeout_s: float = 5.0) -> bool:
        """Write what is queued, for at most that long; False when the limit came first. The thread never keeps a process alive."""
        self._closed = True
        if self._thread is None or self._done.is_set():
            return True
        try:
            self._lines.put_nowait(None)
        except queue.Full:
            return False
        return self._clock.wait(self._done, timeout_s)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, name="events", daemon=True)
                self._thread.start()

    def _write_all(self) -> None:
        ended = False
        while not ended:
            batch, ended = self._batch()
            self._keep(batch)
            if self._kept and (ended or self._clock.monotonic() >= self._again_at):
                self._append()
        self._lose(len(self._kept), "the disk refuses them")
        self._done.set()

    def _keep(self, batch: list[str]) -> None:
        self._kept += batch
        if (over := len(self._kept) - QUEUE_LINES) > 0:
            del self._kept[:over]
            self._lose(over, "the disk refuses them")

    def _batch(self) -> tuple[list[str], bool]:
        """Wait for a line, or for the time to offer again what is kept; take what else is there; True when the end was asked for."""
        batch: list[str] = []
        try:
            item = self._lines.get(timeout=AGAIN_S if self._kept else None)
        except queue.Empty:
            return batch, False
        while item is not None:
            batch.append(item)
            if len(batch) >= _BATCH_LINES:
                return batch, False
            try:
                item = self._lines.get_nowait()
            except queue.Empty:
                return batch, False
        return batch, True

    def _append(self) -> None:
        try:
            self.path.parent.mkdir(exist_ok=True)  # never those above it: a run folder that is gone shall come back, not begin anew
            head = "\n" if self._torn and not _ends_whole(self.path) else ""
            self._disk.append(self.path, (head + "".join(self._kept)).encode())
            self._torn, self._kept = False, []
        except OSError as error:
            self._torn, self._again_at = True, self._clock.monotonic() + AGAIN_S
            self._tell("cannot be written just now", error.strerror or str(error))

    def _lose(self, count: int, why: str) -> None:
        with self._lock:
            self._lost += count
        if count:
            self._tell("are lost", why)

    def _tell(self, what: str, why: str) -> None:
        with self._lock:
            first, self._told = not self._told, True
        if first:
            with suppress(OSError):  # the log of a rank may lie on the same full disk
                self._report(f"slurmtrain: events {what}, training goes on: {self.path}: {one_line(why)}")


def _ends_whole(path: Path) -> bool:
    """Whether the file is not there, is empty, or ends with a newline."""
    try:
        with open(path, "rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return True
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"
    except FileNotFoundError:
        return True
