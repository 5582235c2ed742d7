"""The process that writes an image to disk while training goes on. It never loads torch, MPI or h5py.

Rank 0's writer commits as well. It makes the staging folder (room, owner and leftovers looked at first) and an empty file `go-SSSS` in
it, for which the others wait; they write their files and leave a word each (`reports`); when all have, rank 0's publishes.

A writer hears from its rank all the time: it gives a save up when told to. When its rank is gone it brings the save under way to an
end, if it can, and ends itself: the folder is still published where all writers leave their word in time and the run is still ours.
"""

from __future__ import annotations

import gc
import importlib
import os
import queue
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import numpy as np

from slurmtrain.checkpoint.committing import Committer
from slurmtrain.checkpoint.forkserver import socket_of
from slurmtrain.checkpoint.group import reason_of
from slurmtrain.checkpoint.image import View, spots
from slurmtrain.checkpoint.orders import Ended, Fail, Inquest, Kind, Obituary, Order, Setting, Sweep
from slurmtrain.checkpoint.wire import Wire
from slurmtrain.checkpoint.writer_job import GivenUp, Heard, Job
from slurmtrain.clock import Clock, SystemClock
from slurmtrain.errors import OwnershipError
from slurmtrain.shell import Shell, SystemShell
from slurmtrain.store.commit import discard
from slurmtrain.syscalls import SYSTEM, Syscalls

NICE = 10
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Slurm sends them to all processes of a step; a rank that goes takes its writer with it by closing the wire."""

Work = Order | Obituary | Inquest | Sweep


def serve(fd: int) -> NoReturn:
    """The main program of the fork server: writers on demand, until the other end of the wire is closed."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    gc.freeze()
    wire, children = Wire(socket_of(fd)), set[int]()
    while True:
        try:
            received = wire.receive()
        except EOFError:
            os._exit(0)
        assert received is not None
        (what, value), fds = received
        try:
            if what == "end":
                wire.send(_end(value, children))
                continue
            pid = os.fork()
        except OSError as error:
            wire.send(reason_of(error))
            continue
        if pid == 0:
            wire.close()
            _run_writer(fds[0], value)
        os.close(fds[0])
        children.add(pid)
        wire.send(pid)


def _end(pid: int, children: set[int]) -> int:
    """Kill a child, which nobody has waited for, so that its number is its own; its exit code, -SIGKILL where it is not gone at once."""
    if pid not in children:
        return 0
    os.kill(pid, signal.SIGKILL)
    clock = SystemClock()
    for _ in range(100):
        gone, status = os.waitpid(pid, os.WNOHANG)
        if gone:
            children.discard(pid)
            return os.waitstatus_to_exitcode(status)
        clock.sleep(0.01)
    return -signal.SIGKILL  # in a system call that does not come back


def _run_writer(fd: int, door: str) -> NoReturn:
    try:
        with suppress(OSError):
            os.nice(NICE)
        Writer(Wire(socket_of(fd)), _door(door), SystemClock(), SystemShell()).run()
    finally:
        os._exit(1)


def _door(door: str) -> Syscalls:
    if not door:
        return SYSTEM
    module, function, word = door.split(":", 2)
    made: Syscalls = getattr(importlib.import_module(module), function)(word)
    return made


class Writer:
    """One writer. `run` does not return."""

    def __init__(self, wire: Wire, calls: Syscalls, clock: Clock, shell: Shell) -> None:
        self._wire, self._calls, self._clock, self._shell = wire, calls, clock, shell
        self._work: queue.SimpleQueue[tuple[Setting, int] | Work | None] = queue.SimpleQueue()
        self._heard = Heard()
        self._setting: Setting | None = None
        self._view: View | None = None
        self._boxes: list[np.ndarray] = []
        self._committer: Committer | None = None

    def run(self) -> NoReturn:
        threading.Thread(target=self._listen, daemon=True).start()
        while (work := self._work.get()) is not None:
            if isinstance(work, tuple):
                self._set(*work)
                continue
            self._heard.next = not self._work.empty()
            ended = self._carried_out(work)
            with suppress(OSError):
                self._wire.send(ended)
        os._exit(0)

    def _listen(self) -> None:
        """In a thread of its own."""
        try:
            while (received := self._wire.receive()) is not None:
                value, fds = received
                if isinstance(value, Fail):
                    self._heard.fail = value
                    self._heard.news.set()
                else:
                    self._work.put((value, fds[0]) if isinstance(value, Setting) else value)
                    self._heard.next = True
                    self._heard.news.set()
        except EOFError:
            self._heard.orphan_since = self._clock.monotonic()
            self._heard.news.set()
            self._work.put(None)

    def _set(self, setting: Setting, fd: int) -> None:
        self._boxes = []
        if self._view is not None:
            self._view.close()
        self._setting = setting
        starts, size = spots(setting.layout.specs)
        self._view = View(fd, size, writable=False)
        os.close(fd)
        self._boxes = self._view.arrays(setting.layout.specs, starts)
        self._committer = Committer(setting.terms, calls=self._calls, clock=self._clock, shell=self._shell)

    def _carried_out(self, work: Work) -> Ended:
        begun = self._clock.monotonic()
        kind: Kind = "failed"
        size, text = 0, ""
        notes: tuple[str, ...] = ()
        try:
            kind, (size, notes) = self._do(work)
        except GivenUp as error:
            kind, text = "given up", str(error)
        except OwnershipError as error:
            kind, text = "disowned", str(error)
        except Exception as error:  # noqa: BLE001 the rank must hear of any failure
            text = reason_of(error)
        return Ended(work.seq, kind, self._clock.monotonic() - begun, size, notes, text)

    def _do(self, work: Work) -> tuple[Kind, tuple[int, tuple[str, ...]]]:
        setting = self._setting
        assert setting is not None
        assert self._committer is not None
        if isinstance(work, Sweep):
            for step in work.steps:
                discard(setting.terms.run.staging(step, work.attempt), self._calls)
            return "done", (0, ())
        job = Job(work, setting, self._boxes, self._committer, self._heard, calls=self._calls, clock=self._clock)
        if isinstance(work, Obituary):
            job.refuse(work.error)
            return "done", (0, ())
        if isinstance(work, Inquest):
            return "saved", job.inquest(work.error)
        if work.local is not None:
            with suppress(OSError):
                self._wire.send(self._kept(job, work, work.local))
        if not work.shared:
            return "written", (0, ())
        if setting.writers is not None:
            return "saved", job.lead()
        job.follow()
        return "written", (0, ())

    def _kept(self, job: Job, order: Order, folder: Path) -> Ended:
        """The part of an order that goes to the node's own disk; what goes wrong there keeps nothing from the run folder."""
        begun = self._clock.monotonic()
        report, text = None, ""
        try:
            report = job.keep(folder)
        except Exception as error:  # noqa: BLE001 the rank must hear of any failure
            text = reason_of(error) if str(error) else type(error).__name__
        return Ended(order.seq, "local", self._clock.monotonic() - begun, error=text, report=report)
