"""Hardware that is slow or broken, made of what is healthy: processes stopped most of the time, a slurmd that sees a read-only folder."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import psutil

from tests.fixtures_slurm import SlurmCluster

STOPPED_S, GOES_S = 0.3, 0.01


def probes_of(cluster: SlurmCluster, node: str) -> list[psutil.Process]:
    """The probes that run on a node of this cluster."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            line = process.cmdline()
            if "slurmtrain.runtime.probe" in line and "python" in line[0]:
                environ = process.environ()
                mine = environ.get("SLURM_CONF") == cluster.environ["SLURM_CONF"]
                found += [process] if mine and environ.get("SLURMD_NODENAME") == node else []
    return found


class Brake:
    """Stops processes for nearly all of the time while `braked` says so, on a thread of its own, until it is let go."""

    def __init__(self, look: Callable[[], list[psutil.Process]], braked: Callable[[list[psutil.Process]], bool] = lambda _: True) -> None:
        self._look, self._braked, self._over = look, braked, threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        found: list[psutil.Process] = []
        looked = 0.0
        while not self._over.is_set():
            if time.monotonic() - looked > 1.0:
                found, looked = self._look(), time.monotonic()
            if found and self._braked(found):
                _send(found, signal.SIGSTOP)
                self._over.wait(STOPPED_S)
                _send(found, signal.SIGCONT)
            self._over.wait(GOES_S)


def _send(processes: list[psutil.Process], number: int) -> None:
    for one in processes:
        with suppress(psutil.Error):
            one.send_signal(number)


def slow_node(cluster: SlurmCluster, node: str) -> Brake:
    """A node on which probes get a thirtieth of their time."""
    return Brake(lambda: probes_of(cluster, node))


def slow_link(cluster: SlurmCluster, one: str, other: str) -> Brake:
    """Two nodes that are slow while they are connected to each other, and only then."""

    def linked(probes: list[psutil.Process]) -> bool:
        ends = [_ends(process) for process in probes]
        return len(ends) == 2 and bool({(there, here) for here, there in ends[0]} & ends[1])

    return Brake(lambda: [*probes_of(cluster, one), *probes_of(cluster, other)], linked)


def _ends(process: psutil.Process) -> set[tuple[int, int]]:
    """(own port, the other's) of established connections."""
    with suppress(psutil.Error):
        return {(c.laddr.port, c.raddr.port) for c in process.net_connections("tcp") if c.status == psutil.CONN_ESTABLISHED}
    return set()


@contextmanager
def read_only_on(cluster: SlurmCluster, node: str, folder: Path) -> Iterator[None]:
    """A node whose slurmd, and all that it starts, sees a folder read-only."""
    argv = _slurmd(cluster, node).cmdline()
    cluster.fail(node)
    script = 'mount --make-rprivate / && mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    slurmd = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script, str(folder), *argv],
        env=dict(cluster.environ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        cluster.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False)
        cluster.wait(f"{node} with its read-only folder", lambda: "idle" in _state(cluster, node), 60)
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(slurmd.pid, signal.SIGKILL)
        slurmd.wait()
        cluster.fail(node)
        cluster.restore(node)


def _slurmd(cluster: SlurmCluster, node: str) -> psutil.Process:
    wanted = ["-N", node, "-f", cluster.environ["SLURM_CONF"]]
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            line = process.cmdline()
            if line and Path(line[0]).name == "slurmd" and line[-4:] == wanted:
                return process
    raise AssertionError(f"no slurmd of {node}")


def _state(cluster: SlurmCluster, node: str) -> str:
    return cluster.run(["sinfo", "-h", "-n", node, "-o", "%T"]).stdout
