"""What the bench does to a run from outside: nodes, disks and connections. Each gives back what repairs it; none touches another run."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from recovery_cluster import Field, happens

from slurmtrain.resilience.records import read_attempt, read_attempts
from slurmtrain.rundir import RunDir

GONE_S, FULL_S = 20.0, 8.0
STALLED_S = {"fast": 40.0, "default": 120.0}
_PIDFD_GETFD = 438
Repair = Callable[[], None]


def act(name: str, field: Field, run: RunDir) -> Repair:
    """Do it; what repairs it afterwards."""
    return {
        "fail last": lambda: _node(field, "fail", read_attempts(run)[-1].nodes[-1]),
        "fail first": lambda: _node(field, "fail", _batch_host(field, run)),
        "hang last": lambda: _node(field, "hang", read_attempts(run)[-1].nodes[-1]),
        "hang and wake": lambda: _hang_and_wake(field, run),
        "fill": lambda: _fill(run),
        "move away": lambda: _move_away(run),
        "freeze": lambda: _freeze(run, STALLED_S[field.timings]),
        "reset": lambda: _reset(run),
    }[name]()


def _node(field: Field, deed: str, node: str) -> Repair:
    field.devcluster(deed, node)
    return lambda: _nothing(field.devcluster("restore", node))


def _nothing(_: object) -> None:
    pass


def _batch_host(field: Field, run: RunDir) -> str:
    record = read_attempts(run)[-1]
    return field.job(record.job_id).get("BatchHost", record.nodes[0])


def _hang_and_wake(field: Field, run: RunDir) -> Repair:
    node = read_attempts(run)[-1].nodes[-1]
    field.devcluster("hang", node)

    def saves_again() -> bool:
        second = read_attempt(run, 2)
        return second is not None and any(run.checkpoints.glob(".step-*.a0002.tmp"))

    def wake() -> None:
        happens(saves_again, 240, 0.02)
        field.devcluster("restore", node)

    thread = threading.Thread(target=wake, daemon=True)
    thread.start()
    return thread.join


def _later(after_s: float, deed: Callable[[], None]) -> Repair:
    def wait() -> None:
        time.sleep(after_s)
        deed()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread.join


def _fill(run: RunDir) -> Repair:
    """Take all that is left on the run's (small) file system, for a while."""
    ballast = run.path.parent / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    file.write(b"\0" * size)
    return _later(FULL_S, ballast.unlink)


def _move_away(run: RunDir) -> Repair:
    here, away = run.path.parent, run.path.parent.with_name(run.path.parent.name + ".away")
    here.rename(away)

    def back() -> None:
        if here.exists():
            here.rename(ghost_of(run))
        away.rename(here)

    return _later(GONE_S, back)


def ghost_of(run: RunDir) -> Path:
    """Where a folder is put that somebody made in the place of one that was gone: there should be none."""
    return run.path.parent.with_name(run.path.parent.name + ".ghost")


def _freeze(run: RunDir, seconds: float) -> Repair:
    place = str(run.path.parent)
    subprocess.run(["fsfreeze", "-f", place], check=True, capture_output=True)
    return _later(seconds, lambda: _nothing(subprocess.run(["fsfreeze", "-u", place], check=False, capture_output=True)))


def _reset(run: RunDir) -> Repair:
    """Cut every connection between two ranks: their sockets are borrowed and disconnected, as by a reset."""
    pids = [one.pid for one in psutil.process_iter() if _is_rank(one, run)]
    cut = sum(_cut(pid, other) for pid in pids[:1] for other in _connections(pid, set(pids)))
    if not cut:
        raise RuntimeError("no connection between two ranks was found")
    return lambda: None


def _is_rank(process: psutil.Process, run: RunDir) -> bool:
    with suppress(psutil.Error, OSError):
        line = process.cmdline()
        mine = process.environ().get("SLURMTRAIN_RUN") == str(run.path)
        return mine and "slurmtrain.train" in line and not line[0].endswith("srun")
    return False


def _connections(pid: int, pids: set[int]) -> Iterator[int]:
    """Descriptors of established connections to a port that another rank holds."""
    mine = [one for one in psutil.Process(pid).net_connections("tcp") if one.status == "ESTABLISHED" and one.raddr]
    others = {one.laddr.port for other in pids - {pid} for one in psutil.Process(other).net_connections("tcp")}
    yield from (one.fd for one in mine if one.raddr.port in others)


def _cut(pid: int, descriptor: int) -> int:
    """Shut a socket of another process down; 0 where it is gone already."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.pidfd_open(pid)
    borrowed = libc.syscall(_PIDFD_GETFD, handle, descriptor, 0)
    os.close(handle)
    if borrowed < 0:
        return 0
    with socket.socket(fileno=borrowed) as one, suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    return 1


@contextmanager
def place(name: str, field: Field, run_name: str) -> Iterator[Path]:
    """Where a row's run folder lies."""
    root = field.folder / f"place-{run_name}"
    if not name:
        yield field.runs
        return
    root.mkdir()
    mount = {
        "small": ["mount", "-t", "tmpfs", "-o", "size=96m", "bench", str(root)],
        "loop": ["mount", "-o", "loop", str(_image(field, run_name)) if name == "loop" else "", str(root)],
    }.get(name)
    if mount:
        subprocess.run(mount, check=True, capture_output=True)
    try:
        yield root
    finally:
        if mount:
            subprocess.run(["umount", "-l", str(root)], check=False, capture_output=True)


def _image(field: Field, run_name: str) -> Path:
    image = field.folder / f"{run_name}.img"
    with open(image, "wb") as file:
        file.truncate(256 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True, capture_output=True)
    return image


@contextmanager
def prepared(name: str, field: Field) -> Iterator[str]:
    """The site file for a row; what must be there before its run is, and is taken away after it."""
    if name != "prolog":
        yield str(field.folder / ("nompi.toml" if name == "no mpi" else "bench.toml"))
        return
    conf = Path(os.environ["SLURM_CONF"])
    before, script = conf.read_text(), field.folder / "prolog"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    try:
        conf.write_text(f"{before}Prolog={script}\n")
        field.said(["scontrol", "reconfigure"])
        yield str(field.folder / "bench.toml")
    finally:
        conf.write_text(before)
        field.said(["scontrol", "reconfigure"], check=False)
