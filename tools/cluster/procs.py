"""Which processes belong to a cluster or to a node of it, by evidence, and how they are ended or stopped.

Evidence is a mark in the environment of what devcluster started (slurmstepd inherits it), a file or socket open in the node's
folder (a slurmstepd that lost the mark), `SLURMD_NODENAME` in a job's environment, and descent from any of these.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .spec import DevclusterError, Folder

OWNER = "SLURMTRAIN_DEVCLUSTER_OWNER"
"""Folder of the cluster; only daemons carry it (never `devcluster env`, or `down` would end the user's shell)."""
ROLE = "SLURMTRAIN_DEVCLUSTER_ROLE"
"""munged, slurmctld, slurmdbd, database, or a node's name."""
PROC = Path("/proc")
SHM = Path("/dev/shm")
POLL_S = 0.02
ENDED = "ZX"


@dataclass(frozen=True)
class Process:
    """One process as /proc shows it: `started` tells a pid that was given out again from the old one."""

    pid: int
    parent: int
    state: str
    started: int


def snapshot() -> dict[int, Process]:
    """All processes that run, this one left out."""
    found = (read(int(entry.name)) for entry in PROC.iterdir() if entry.name.isdigit())
    return {p.pid: p for p in found if p and p.state not in ENDED and p.pid != os.getpid()}


def read(pid: int) -> Process | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return Process(pid, int(fields[1]), fields[0], int(fields[19]))


def environ(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty when it is gone or not ours to read."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (part.partition(b"=") for part in raw.split(b"\0") if b"=" in part)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def command(pid: int) -> str:
    """The name of the program, as its first argument has it, without folders."""
    try:
        first = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0", 1)[0]
    except OSError:
        return ""
    return os.fsdecode(first).rpartition("/")[2]


def sockets() -> dict[str, str]:
    """Inode -> path of every Unix socket that has one."""
    rows = (line.split(maxsplit=7) for line in (PROC / "net/unix").read_text(errors="replace").splitlines()[1:])
    return {row[6]: row[7] for row in rows if len(row) == 8}


def open_paths(pid: int, socket_paths: Mapping[str, str]) -> Iterable[str]:
    """Files and named sockets that a process holds open."""
    try:
        links = list((PROC / str(pid) / "fd").iterdir())
    except OSError:
        return
    for link in links:
        try:
            target = str(link.readlink())
        except OSError:
            continue
        yield socket_paths.get(target[8:-1], "") if target.startswith("socket:[") else target


def under(path: str, folder: Path, root: str) -> bool:
    """Whether the path lies in the folder, seen from outside or inside a chroot at `root`."""
    return path.removeprefix(root or "\0").startswith(f"{folder}/")


def descendants(of: Iterable[int], all_of: Mapping[int, Process]) -> set[int]:
    """The pids given and every process below them."""
    family = set(of) & set(all_of)
    while more := {p.pid for p in all_of.values() if p.parent in family} - family:
        family |= more
    return family


def daemons_of(folder: Folder, role: str, root: str = "") -> set[Process]:
    """What devcluster started for a role, and for a node also its slurmstepd."""
    home, named, running = folder.node(role), sockets(), snapshot()

    def ours(pid: int) -> bool:
        marks = environ(pid)
        if marks.get(OWNER) == str(folder.root):
            return marks.get(ROLE) == role
        return any(under(path, home, root) for path in open_paths(pid, named))

    return {p for p in running.values() if ours(p.pid)}


def jobs_of(folder: Folder, node: str) -> set[Process]:
    """Processes of jobs on a node: their environment names the node and this cluster's slurm.conf (or none)."""
    conf = str(folder.slurm_conf)

    def ours(pid: int) -> bool:
        marks = environ(pid)
        return marks.get("SLURMD_NODENAME") == node and marks.get("SLURM_CONF") == conf

    return {p for p in snapshot().values() if ours(p.pid)}


def owned_by(folder: Folder) -> set[Process]:
    """Every process that devcluster started for this cluster."""
    return {p for p in snapshot().values() if environ(p.pid).get(OWNER) == str(folder.root)}


def same(process: Process) -> bool:
    """Whether the process still runs: its pid has not been given to another."""
    now = read(process.pid)
    return now is not None and now.started == process.started and now.state not in ENDED


def _send(process: Process, signum: int) -> None:
    if same(process):
        try:
            os.kill(process.pid, signum)
        except ProcessLookupError:
            return


def end_all(find: Callable[[], set[Process]], limit_s: float = 10.0) -> int:
    """SIGKILL what `find` finds until it finds nothing; the number of processes ended.

    Raises DevclusterError when some are left after `limit_s`.
    """
    seen: set[Process] = set()
    deadline = time.monotonic() + limit_s
    while left := find():
        if time.monotonic() > deadline:
            raise DevclusterError(f"processes outlive SIGKILL: {' '.join(str(p.pid) for p in left)}")
        for process in left:
            _send(process, signal.SIGKILL)
        seen |= left
        time.sleep(POLL_S)
    return len(seen)


def signal_until(find: Callable[[], set[Process]], signum: int, done: Callable[[Process], bool], limit_s: float = 10.0) -> int:
    """Signal what `find` finds until all of it is `done` (stopped, or running again); the number of processes."""
    deadline = time.monotonic() + limit_s
    while True:
        found = find()
        waiting = {p for p in found if not done(p)}
        if not waiting:
            return len(found)
        if time.monotonic() > deadline:
            raise DevclusterError(f"processes ignore signal {signum}: {' '.join(str(p.pid) for p in waiting)}")
        for process in waiting:
            _send(process, signum)
        time.sleep(POLL_S)


def shared_memory(pids: Iterable[int]) -> set[Path]:
    """Files of /dev/shm that the processes have mapped (MPI's segments): they outlive a SIGKILL."""
    found: set[Path] = set()
    for pid in pids:
        try:
            lines = (PROC / str(pid) / "maps").read_text(errors="replace").splitlines()
        except OSError:
            continue
        paths = (fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6)
        found |= {Path(path) for path in paths if path.startswith(f"{SHM}/") and not path.endswith("(deleted)")}
    return found


def forget(segments: set[Path]) -> None:
    """Remove those that no process has mapped any more."""
    if segments:
        for segment in segments - shared_memory(snapshot()):
            segment.unlink(missing_ok=True)
