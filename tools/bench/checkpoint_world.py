"""Processes that do the same thing at the same time, the clock that is held against them, and what of the machine a clock depends on."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self

import psutil
import torch
import torch.distributed as dist

from slurmtrain.train.group import TorchGroup

CLOSE_SECONDS = 20.0
LONGEST_SECONDS = 900
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
STOPPED = 130
STOP = threading.Event()
"""The program was told to stop: an exception alone may be lost in a finaliser."""


@dataclass
class Member:
    """One of the processes of a world. `kept`: what one deed leaves for the next ones."""

    rank: int
    ranks: int
    group: TorchGroup
    kept: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What a deed gave back on one rank, and when it began and ended there, by the clock that all processes share."""

    start: float
    end: float
    value: Any


class World:
    """So many processes, forked from this one, with a gloo group among them. A deed is a function of a module: deed(member, *args)."""

    def __init__(self, ranks: int, folder: Path) -> None:
        self.ranks = ranks
        self._pipes: list[Connection] = []
        self._said = [folder / f"said-{rank}" for rank in range(ranks)]
        try:
            self._start(folder)
        except BaseException:
            self.kill()
            raise

    def _start(self, folder: Path) -> None:
        context = multiprocessing.get_context("fork")
        barrier = context.Barrier(self.ranks)
        store = folder / f"store-{self.ranks}-{time.monotonic_ns()}"
        for rank, said in enumerate(self._said):
            here, there = context.Pipe()
            context.Process(target=_serve, args=(rank, self.ranks, there, barrier, str(store), said)).start()
            there.close()
            self._pipes.append(here)

    def run(self, deed: Callable[..., Any], *args: Any) -> list[Any]:
        """What the deed gives back on each rank. Raises RuntimeError with the trace of the first rank that fails."""
        return [answer.value for answer in self.answers(deed, *args)]

    def timed(self, deed: Callable[..., Any], *args: Any) -> float:
        """Seconds from when the first began until the last had ended; all began at a barrier."""
        answers = self.answers(deed, *args)
        return max(answer.end for answer in answers) - min(answer.start for answer in answers)

    def answers(self, deed: Callable[..., Any], *args: Any) -> list[Answer]:
        """As `run`, with the times."""
        if STOP.is_set():
            raise SystemExit(STOPPED)
        for pipe in self._pipes:
            pipe.send((deed, args))
        answers: dict[int, Answer] = {}
        numbers = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        while len(answers) < self.ranks:
            for pipe in wait([pipe for pipe in self._pipes if numbers[pipe] not in answers]):
                assert isinstance(pipe, Connection)
                try:
                    start, end, fault, value = pipe.recv()
                except EOFError:
                    fault = f"the process has ended\n{self._said[numbers[pipe]].read_text()[-2000:]}"
                if fault:
                    raise RuntimeError(f"rank {numbers[pipe]} of {self.ranks}: {fault}")
                answers[numbers[pipe]] = Answer(start, end, value)
        return [answers[rank] for rank in range(self.ranks)]

    def close(self) -> None:
        """End the processes: asked first, then killed with all that they have started."""
        for pipe in self._pipes:
            try:
                pipe.send(None)
            except OSError:
                continue
        deadline = time.monotonic() + CLOSE_SECONDS
        for process in multiprocessing.active_children():
            process.join(max(0.0, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """End what is left of this program's processes, and what they have started."""
        for process in multiprocessing.active_children():
            for one in (*psutil.Process(process.pid).children(recursive=True), process):
                try:
                    one.kill()
                except psutil.NoSuchProcess:
                    continue
            process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self.kill() if kind else self.close()


def _serve(rank: int, ranks: int, pipe: Connection, barrier: Any, store: str, said: Path) -> None:
    """A member's life: deeds until it is told to stop. What it and its libraries print goes into a file."""
    fd = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks)
    member = Member(rank, ranks, TorchGroup(LONGEST_SECONDS))
    while (order := pipe.recv()) is not None:
        deed, args = order
        start = end = 0.0
        try:
            barrier.wait(LONGEST_SECONDS)
            start = time.perf_counter()
            value = deed(member, *args)
            end = time.perf_counter()
            pipe.send((start, end, "", value))
        except BaseException:  # noqa: BLE001 it is told to whoever waits
            pipe.send((start, end, traceback.format_exc(), None))
    for name in [name for name, one in member.kept.items() if hasattr(one, "close")]:
        member.kept.pop(name).close()
    sys.stdout.flush()
    os._exit(0)


def drop(folder: Path, *, whole_machine: bool = False) -> None:
    """Take the files of a folder out of memory: each is made durable first, for dirty pages stay.

    `whole_machine`: through /proc/sys/vm/drop_caches as well, which others on the machine feel; for root alone.
    """
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    if whole_machine:
        Path("/proc/sys/vm/drop_caches").write_text("1")


def resident(folder: Path) -> float:
    """Which share of the bytes of a folder's files is in memory."""
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    pages = there = 0
    for path in [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as mapped:
            count = -(-len(mapped) // mmap.PAGESIZE)
            states = (ctypes.c_ubyte * count)()
            window = (ctypes.c_char * len(mapped)).from_buffer(mapped)
            if mincore(ctypes.byref(window), ctypes.c_size_t(len(mapped)), states):
                raise OSError(ctypes.get_errno(), "mincore", str(path))
            del window
            pages, there = pages + count, there + sum(state & 1 for state in states)
    return there / pages if pages else 0.0


class Growth:
    """How much the resident size of this process grows: the kernel's own peak (VmHWM, set back first) less VmRSS at the beginning.

    All of it counts: anonymous memory, shared memory, mapped files.
    """

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self._before = _status("VmRSS")

    def peak(self) -> int:
        """Bytes."""
        return _status("VmHWM") - self._before


def _status(key: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


def machine(folder: Path) -> dict[str, Any]:
    """What the figures depend on."""
    import h5py
    import numpy as np

    model = next((line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "?")
    mounts = [part for part in psutil.disk_partitions(all=True) if folder.resolve().is_relative_to(part.mountpoint)]
    disk = max(mounts, key=lambda part: len(part.mountpoint), default=None)
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "disk": f"{disk.device} {disk.fstype}" if disk else "?",
        "kernel": os.uname().release,
        "load": round(os.getloadavg()[0], 2),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": np.__version__,
        "h5py": h5py.__version__,
    }
