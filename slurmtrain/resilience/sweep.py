"""Nothing stays behind: ends the processes of attempts that are over on one node, and takes their heartbeats away.

A process belongs to an attempt when its environment says so (SLURMTRAIN_RUN, SLURMTRAIN_ATTEMPT, and the node's name), or when it
descends from one that does; what it did to its session or process group does not matter. Never touched: the one that sweeps and all
that it descends from, other runs, later attempts, other users, other nodes that are emulated on the same machine.
Signals go through pidfds: a number that was given to another process in between is never hit.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from slurmtrain.clock import Clock
from slurmtrain.telemetry.heartbeat import MEMORY, heartbeat_dir, run_memory

RUN, ATTEMPT = "SLURMTRAIN_RUN", "SLURMTRAIN_ATTEMPT"
NODES = ("SLURMTRAIN_NODE", "SLURMD_NODENAME")
"""The first of them that is set names the node."""
GRACE_S = 5.0
KILL_S = 5.0
"""How long a process may outlive SIGKILL before the sweep gives up on it (it waits for a disk or a driver)."""


@dataclass(frozen=True)
class Swept:
    """Numbers of processes. `left`: pids that outlived SIGKILL."""

    ended: int = 0
    killed: int = 0
    left: tuple[int, ...] = ()

    def __str__(self) -> str:
        if not self.ended:
            return "nothing was left"
        killed = f", {self.killed} of them by SIGKILL" if self.killed else ""
        left = f"; {' '.join(map(str, self.left))} outlive SIGKILL" if self.left else ""
        return f"{self.ended} process{'' if self.ended == 1 else 'es'} ended{killed}{left}"


@dataclass(frozen=True)
class _Handle:
    """A process held by a pidfd."""

    pid: int
    fd: int


def sweep(run: Path, node: str, upto: int, *, clock: Clock, grace_s: float = GRACE_S, memory: Path = MEMORY) -> Swept:
    """End what belongs to attempts up to `upto` of this run on this node: TERM, `grace_s`, KILL. Raises nothing."""
    ended, killed = set[int](), set[int]()
    deadline = clock.monotonic() + grace_s
    with contextlib.ExitStack() as stack:
        known = _find(run, node, upto)
        asked = _signal(known, signal.SIGTERM, stack)
        ended |= {one.pid for one in asked}
        _wait(asked, deadline, clock)
        last = clock.monotonic() + KILL_S
        while (left := _find(run, node, upto, known)) and clock.monotonic() < last:
            hit = _signal(left, signal.SIGKILL, stack)
            killed |= {one.pid for one in hit}
            _wait(hit, last, clock)
    forget_beats(run, node, upto, memory)
    return Swept(len(ended | killed), len(killed), tuple(sorted(one.pid for one in left)))


def belongs(environ: Mapping[str, str], run: Path, node: str, upto: int) -> bool:
    """Whether a process with this environment is to go."""
    attempt = environ.get(ATTEMPT, "")
    name = next((environ[key] for key in NODES if environ.get(key)), "")
    return environ.get(RUN) == str(run) and name == node and attempt.isdigit() and int(attempt) <= upto


def forget_beats(run: Path, node: str, upto: int, memory: Path = MEMORY) -> None:
    """Remove the heartbeats of attempts up to `upto`, and the folders above them when nothing else is in there."""
    for folder in (run_memory(run, memory) / node).glob("a*"):
        if folder.name[1:].isdigit() and int(folder.name[1:]) <= upto:
            shutil.rmtree(heartbeat_dir(run, int(folder.name[1:]), node, memory), ignore_errors=True)
    remove_empty(run, node, memory)


def remove_empty(run: Path, node: str, memory: Path = MEMORY) -> None:
    """Remove a run's folder of a node, and the run's, when they are empty."""
    with contextlib.suppress(OSError):
        (run_memory(run, memory) / node).rmdir()
        run_memory(run, memory).rmdir()


def _find(run: Path, node: str, upto: int, known: Iterable[psutil.Process] = ()) -> list[psutil.Process]:
    """Processes that run (zombies do not) and belong here, with all that descends from them.

    `known`: those found before: one whose parent has ended, and who has no mark, could not be found again.
    """
    mine, uid = _ancestry(), os.getuid()
    marked, children = [process for process in known if _runs(process)], dict[int, list[psutil.Process]]()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.uids().real != uid or process.status() == psutil.STATUS_ZOMBIE:
                continue
            children.setdefault(process.ppid(), []).append(process)
            if belongs(process.environ(), run, node, upto):
                marked.append(process)
    found = {process.pid: process for process in marked}
    stack = list(found)
    while stack:
        for child in children.get(stack.pop(), ()):
            if child.pid not in found:
                found[child.pid] = child
                stack.append(child.pid)
    return [process for pid, process in found.items() if pid not in mine]


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _ancestry() -> frozenset[int]:
    """The sweeping process and all that it descends from."""
    with contextlib.suppress(psutil.Error):
        return frozenset({os.getpid(), *(parent.pid for parent in psutil.Process().parents())})
    return frozenset({os.getpid(), os.getppid()})


def _signal(processes: Iterable[psutil.Process], signum: int, stack: contextlib.ExitStack) -> list[_Handle]:
    """Signal them; those that were there to get it."""
    hit = []
    for process in processes:
        with contextlib.suppress(OSError, psutil.Error):
            fd = os.pidfd_open(process.pid)
            stack.callback(os.close, fd)
            if process.is_running():  # the pidfd was opened for the process that was found: same pid, same time of creation
                signal.pidfd_send_signal(fd, signum)
                hit.append(_Handle(process.pid, fd))
    return hit


def _wait(handles: Iterable[_Handle], deadline: float, clock: Clock) -> None:
    """Wait until all have ended; a pidfd can be read once its process is gone."""
    poll, waiting = select.poll(), set[int]()
    for handle in handles:
        poll.register(handle.fd, select.POLLIN)
        waiting.add(handle.fd)
    while waiting and (left_s := deadline - clock.monotonic()) > 0:
        for fd, _ in poll.poll(left_s * 1000):
            poll.unregister(fd)
            waiting.discard(fd)
