"""up, down, status: a cluster from nothing to idle nodes, and back to nothing."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from . import accounting, conf, packages, ports, procs, suites
from .daemons import Cluster, NodeState, node_states, start_munged, start_slurmctld, start_slurmd
from .spec import DevclusterError, Folder, Record, Spec

NODES_LIMIT_S = 60.0
LOCK_LIMIT_S = 90.0


@contextmanager
def alone(folder: Folder) -> Iterator[None]:
    """One `up`, `down`, `fail` ... at a time for a folder."""
    deadline = time.monotonic() + LOCK_LIMIT_S
    while (lock := ports.hold(f"folder-{folder.root}")) is None:
        if time.monotonic() > deadline:
            raise DevclusterError(f"{folder.root}: another devcluster command has been at work here for {LOCK_LIMIT_S:.0f} s")
        time.sleep(0.1)
    with lock:
        yield


def version(text: str) -> tuple[int, int]:
    """(22, 5) from `slurm-wlm 22.05.8`."""
    match = re.search(r"(\d+)\.(\d+)", text)
    if match is None:
        raise DevclusterError(f"slurmctld -V said {text.strip()!r}: no version in it")
    return int(match[1]), int(match[2])


def installed_version(system: Path | None) -> tuple[int, int]:
    argv = [*(["chroot", str(system)] if system else []), "slurmctld", "-V"]
    return version(subprocess.run(argv, capture_output=True, text=True, check=False, env={"PATH": packages.SEARCH}).stdout)


def up(folder: Folder, spec: Spec) -> str:
    """Bring the cluster up, repair it, or find that it is up; the line that says which."""
    if os.geteuid() != 0:
        raise DevclusterError("needs root: slurmd runs jobs as their users, and pretended GPUs are device files")
    system = suites.cached(spec.suite, os.environ) if spec.suite else None
    packages.need_programs(accounting=spec.accounting, search=suites.search_path(system) if system else packages.SEARCH, suite=spec.suite)
    with alone(folder):
        record = folder.load()
        if record is None:
            return _build(folder, spec, system)
        if record.spec != spec:
            raise DevclusterError(f"{folder.root} holds another cluster ({record.spec.words()}): `down` it first, or choose another --name")
        cluster = Cluster(folder, record)
        missing = [role for role in roles(record) if not cluster.alive(role)]
        if missing == roles(record):
            _remove(cluster)
            return _build(folder, spec, system) + " (rebuilt: none of its daemons ran)"
        if missing or _down_nodes(cluster):
            _start(cluster)
            return f"repaired: {cluster.record.spec.words()}" + (f" (did not run: {' '.join(missing)})" if missing else "")
        return f"already up: {spec.words()}"


def loaded(folder: Folder) -> Cluster:
    """The cluster of the folder; raises DevclusterError where there is none."""
    record = folder.load()
    if record is None:
        raise DevclusterError(f"no cluster in {folder.root}: start one with `devcluster up`")
    return Cluster(folder, record)


def env(folder: Folder) -> dict[str, str]:
    """What a shell needs to talk to the cluster."""
    suite = loaded(folder).record.spec.suite
    path = os.environ.get("PATH", packages.SEARCH)
    clients = {"PATH": f"{folder.bin}:{path}"} if suite and not path.startswith(f"{folder.bin}:") else {}
    return {"SLURM_CONF": str(folder.slurm_conf), "SLURMTRAIN_SITE": "devcluster", "SLURMTRAIN_DEVCLUSTER_DIR": str(folder.root), **clients}


def status(folder: Folder) -> tuple[bool, list[str]]:
    """Whether all of it runs, and the lines that say so."""
    cluster = loaded(folder)
    record = cluster.record
    states = node_states(cluster)
    dead = [role for role in roles(record) if not cluster.alive(role)]
    lines = [
        f"folder   {folder.root}",
        f"slurm    {record.slurm[0]}.{record.slurm[1]:02d}, {record.spec.words()}, slurmctld port {record.ports.slurmctld}",
        f"daemons  {'all run' if not dead else 'not running: ' + ' '.join(dead)}",
    ]
    for name in record.spec.node_names:
        node = states.get(name)
        lines.append(f"{name:8} " + (f"{node.state}{'  ' + node.reason if node.reason else ''}" if node else "unknown (no answer)"))
    return not dead and all(n in states and states[n].up for n in record.spec.node_names), lines


def roles(record: Record) -> list[str]:
    """The daemons of a cluster, in the order of their start."""
    return ["munged", *(["database", "slurmdbd"] if record.spec.accounting else []), "slurmctld", *record.spec.node_names]


def _build(folder: Folder, spec: Spec, system: Path | None) -> str:
    if folder.root.exists() and any(folder.root.iterdir()):
        raise DevclusterError(f"{folder.root} is not empty and holds no cluster: choose another folder with --dir")
    slurm = installed_version(system)
    if spec.topology == "block" and slurm < conf.FIRST_WITH_BLOCKS:
        raise DevclusterError(
            f"--topology block needs Slurm 23.11 or newer, this is {slurm[0]}.{slurm[1]:02d}: use tree, or --suite trixie"
        )
    began = time.monotonic()
    procs.forget(set(procs.SHM.glob("mpich_shm_*")))  # job ids begin anew: a killed start's segment would be met by its namesake
    with ports.free_block(spec.nodes + 3) as block:
        cluster = Cluster(folder, Record(spec, block, slurm, socket.gethostname().split(".")[0]))
        try:
            _write(cluster)
            if system:
                suites.mount(folder, system)
                suites.write_wrappers(folder)
            _start(cluster)
        except BaseException:
            _remove(cluster)
            raise
    return f"up: {spec.words()}, Slurm {slurm[0]}.{slurm[1]:02d}, {time.monotonic() - began:.1f} s"


def _write(cluster: Cluster) -> None:
    folder, spec = cluster.folder, cluster.record.spec
    for path in (folder.etc, folder.run, folder.log, folder.state, folder.dev, *(folder.node(n) / "spool" for n in spec.node_names)):
        path.mkdir(parents=True, exist_ok=True)
    folder.record.write_text(cluster.record.to_json())
    for name, text in conf.files(cluster.record, folder).items():
        (folder.etc / name).write_text(text)
    folder.munge_key.touch(mode=0o600)
    folder.munge_key.write_bytes(os.urandom(128))
    for gpu in range(spec.gpus):
        os.mknod(folder.dev / f"gpu{gpu}", stat.S_IFCHR | 0o666, os.makedev(1, 3))


def _start(cluster: Cluster) -> None:
    """Start whatever does not run, and wait until every node can take jobs."""
    if not cluster.alive("munged"):
        start_munged(cluster)
    if cluster.record.spec.accounting and not cluster.alive("database"):
        accounting.start_database(cluster)
    if cluster.record.spec.accounting and not cluster.alive("slurmdbd"):
        accounting.start_slurmdbd(cluster)
    if not cluster.alive("slurmctld"):
        start_slurmctld(cluster)
    known = node_states(cluster)
    for node in cluster.record.spec.node_names:
        if not cluster.alive(node):
            revive(cluster, node, known)
    wait_nodes(cluster, cluster.record.spec.node_names)


def revive(cluster: Cluster, node: str, known: Mapping[str, NodeState]) -> None:
    """Start a dead node. Slurm is told first that it was down: else it would believe the node's old jobs to run for ever."""
    kill_node(cluster, node)
    if node in known and known[node].state.rstrip("*") not in {"unknown", "down"}:
        cluster.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=devcluster: it lost its slurmd")
    start_slurmd(cluster, node)


def _down_nodes(cluster: Cluster) -> list[str]:
    states = node_states(cluster)
    return [n for n in cluster.record.spec.node_names if n not in states or not states[n].up]


def wait_nodes(cluster: Cluster, nodes: Sequence[str], limit_s: float = NODES_LIMIT_S) -> None:
    """Wait until the nodes can take jobs; nodes that Slurm holds down are resumed."""
    deadline = time.monotonic() + limit_s
    while True:
        states = node_states(cluster)
        late = [n for n in nodes if n not in states or not states[n].up]
        if not late:
            return
        if time.monotonic() > deadline:
            shown = " ".join(f"{n}={states[n].state if n in states else 'unknown'}" for n in late)
            raise DevclusterError(f"not idle after {limit_s:.0f} s: {shown}\n{cluster.tail('slurmctld')}\n{cluster.tail(late[0])}")
        for node in late:
            if node in states and states[node].state.startswith(("down", "drain")):
                cluster.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
        time.sleep(0.1)


def down(folder: Folder) -> str:
    """End every process of the cluster and remove its folder."""
    with alone(folder):
        record = folder.load()
        if record is None:
            return f"no cluster in {folder.root}"
        _remove(Cluster(folder, record))
        return f"down: {folder.root} removed"


def _remove(cluster: Cluster) -> None:
    """The controller first, so that it requeues nothing; then the nodes with their jobs; then the rest."""
    folder = cluster.folder
    procs.end_all(lambda: procs.daemons_of(folder, "slurmctld", cluster.root))
    for node in cluster.record.spec.node_names:
        kill_node(cluster, node)
    procs.end_all(lambda: procs.owned_by(folder))
    suites.unmount(folder)
    suites.remove_tree(folder.root)
    if folder.root.parent.name == "slurmtrain" and not any(folder.root.parent.iterdir()):
        folder.root.parent.rmdir()


def kill_node(cluster: Cluster, node: str) -> int:
    """SIGKILL to slurmstepd and slurmd, then to jobs and all below them, until a look finds none; how many there were.

    Their shared memory goes with them. With a slurmstepd left alive on the batch host a job ends FAILED (JobLaunchFailure), which is
    no node failure.
    """
    family = below_steps(cluster, node)
    segments = procs.shared_memory(p.pid for p in family | procs.jobs_of(cluster.folder, node))
    count = procs.end_all(lambda: procs.daemons_of(cluster.folder, node, cluster.root))
    count += procs.end_all(lambda: procs.jobs_of(cluster.folder, node) | {p for p in family if procs.same(p)})
    procs.forget(segments)
    return count


def below_steps(cluster: Cluster, node: str) -> set[procs.Process]:
    """Processes under the node's slurmstepd, whatever their environment says."""
    running = procs.snapshot()
    daemons = {p.pid for p in procs.daemons_of(cluster.folder, node, cluster.root)}
    return {running[pid] for pid in procs.descendants(daemons, running) - daemons}
