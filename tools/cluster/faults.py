"""fail, hang, restore: a node dies, a node hangs, a node comes back."""

from __future__ import annotations

import signal
import time

from . import procs
from .daemons import Cluster, node_states
from .lifecycle import alone, below_steps, kill_node, loaded, revive, wait_nodes
from .spec import DevclusterError, Folder

STOPPED = "Tt"


def _node(cluster: Cluster, name: str) -> None:
    names = cluster.record.spec.node_names
    if name not in names:
        raise DevclusterError(f"no node {name!r}: this cluster has {names[0]} to {names[-1]}")


def fail(folder: Folder, node: str) -> str:
    """The node loses power."""
    with alone(folder):
        cluster = loaded(folder)
        _node(cluster, node)
        return f"{node}: {kill_node(cluster, node)} processes killed"


def hang(folder: Folder, node: str) -> str:
    """The node stops answering: SIGSTOP to the same processes, in the same order."""
    with alone(folder):
        cluster = loaded(folder)
        _node(cluster, node)
        return f"{node}: {_stop_or_go(cluster, node, signal.SIGSTOP)} processes stopped"


def _stop_or_go(cluster: Cluster, node: str, signum: int) -> int:
    stop = signum == signal.SIGSTOP

    def done(process: procs.Process) -> bool:
        return (process.state in STOPPED) == stop

    def daemons() -> set[procs.Process]:
        return procs.daemons_of(cluster.folder, node, cluster.root)

    def jobs() -> set[procs.Process]:
        return procs.jobs_of(cluster.folder, node) | below_steps(cluster, node)

    return sum(procs.signal_until(find, signum, done) for find in ((daemons, jobs) if stop else (jobs, daemons)))


def restore(folder: Folder, node: str) -> str:
    """The node comes back: what was stopped goes on, a dead slurmd starts again; waits until jobs can run there."""
    with alone(folder):
        cluster = loaded(folder)
        _node(cluster, node)
        began = time.monotonic()
        if cluster.alive(node):
            _stop_or_go(cluster, node, signal.SIGCONT)
        else:
            revive(cluster, node, node_states(cluster))
        wait_nodes(cluster, [node])
        return f"{node}: back after {time.monotonic() - began:.1f} s"
