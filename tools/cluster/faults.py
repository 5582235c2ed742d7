"""fail, hang, restore: a node dies, a node hangs, a node comes back."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

from . import procs
from .daemons import Cluster, node_states
from .lifecycle import alone, below_steps, kill_node, loaded, revive, wait_nodes
from .spec import DevclusterError, Folder

STOPPED = "Tt"


def _of(folder: Folder, nodes: Sequence[str]) -> Cluster:
    cluster = loaded(folder)
    names = cluster.record.spec.node_names
    if unknown := [node for node in nodes if node not in names]:
        raise DevclusterError(f"no node {' '.join(unknown)}: this cluster has {names[0]} to {names[-1]}")
    return cluster


def fail(folder: Folder, nodes: Sequence[str]) -> list[str]:
    """The nodes lose power, one after the other."""
    with alone(folder):
        cluster = _of(folder, nodes)
        return [f"{node}: {kill_node(cluster, node)} processes killed" for node in nodes]


def hang(folder: Folder, nodes: Sequence[str]) -> list[str]:
    """The nodes stop answering: SIGSTOP to the same processes, in the same order."""
    with alone(folder):
        cluster = _of(folder, nodes)
        return [f"{node}: {_stop_or_go(cluster, node, signal.SIGSTOP)} processes stopped" for node in nodes]


def _stop_or_go(cluster: Cluster, node: str, signum: int) -> int:
    stop = signum == signal.SIGSTOP

    def done(process: procs.Process) -> bool:
        return (process.state in STOPPED) == stop

    def daemons() -> set[procs.Process]:
        return procs.daemons_of(cluster.folder, node, cluster.root)

    def jobs() -> set[procs.Process]:
        return procs.jobs_of(cluster.folder, node) | below_steps(cluster, node)

    return sum(procs.signal_until(find, signum, done) for find in ((daemons, jobs) if stop else (jobs, daemons)))


def restore(folder: Folder, nodes: Sequence[str]) -> list[str]:
    """The nodes come back: what was stopped goes on, a dead slurmd starts again; waits until jobs can run there."""
    with alone(folder):
        cluster = _of(folder, nodes)
        known = node_states(cluster)
        began = time.monotonic()
        for node in nodes:
            if cluster.alive(node):
                _stop_or_go(cluster, node, signal.SIGCONT)
            else:
                revive(cluster, node, known)
        wait_nodes(cluster, nodes)
        return [f"{' '.join(nodes)}: back after {time.monotonic() - began:.1f} s"]
