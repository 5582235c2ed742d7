"""Starts the daemons of a cluster, asks Slurm's clients, and says why something does not run."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import procs, suites
from .spec import DevclusterError, Folder, Record

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
POLL_S = 0.05
DEAD_AFTER = 10
"""Looks in a row at which a daemon that starts is not there."""
TAIL_LINES = 15


@dataclass(frozen=True)
class Cluster:
    """A cluster in its folder."""

    folder: Folder
    record: Record

    @property
    def root(self) -> str:
        """The root of its daemons: "" for this machine's own, else the view of the suite's system."""
        return str(suites.view(self.folder)) if self.record.spec.suite else ""

    def argv(self, argv: Sequence[str]) -> list[str]:
        return ["chroot", self.root, *argv] if self.root else list(argv)

    def environ(self, **more: str) -> dict[str, str]:
        """A clean environment: what the caller's shell holds must not reach daemons and jobs."""
        return {"PATH": PATH, "LANG": "C.UTF-8", "HOME": os.environ.get("HOME", "/root"), "SLURM_CONF": str(self.folder.slurm_conf), **more}

    def ask(self, *argv: str, limit_s: float = 20.0) -> subprocess.CompletedProcess[str]:
        """Run a Slurm client to its end."""
        try:
            return subprocess.run(
                self.argv(argv), env=self.environ(), capture_output=True, text=True, errors="replace", timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(list(argv), 124, "", f"{argv[0]}: no answer in {limit_s:.0f} s")

    def log_of(self, role: str) -> Path:
        """Where a daemon's log lies."""
        return self.folder.node(role) / "slurmd.log" if role in self.record.spec.node_names else self.folder.log_file(role)

    def alive(self, role: str) -> bool:
        """Whether the daemon that was started for the role runs (a stopped one counts)."""
        try:
            pid = int(self.folder.pid_file(role).read_text())
        except (OSError, ValueError):
            return False
        found = procs.read(pid)
        marks = procs.environ(pid)
        mine = marks.get(procs.OWNER) == str(self.folder.root) and marks.get(procs.ROLE) == role
        return found is not None and found.state not in procs.ENDED and mine

    def start(self, role: str, argv: Sequence[str]) -> None:
        """Start a daemon in a session of its own; what it prints goes to its log's neighbour `.out`."""
        out = self.log_of(role).with_suffix(".out")
        out.parent.mkdir(parents=True, exist_ok=True)
        environ = self.environ(**{procs.OWNER: str(self.folder.root), procs.ROLE: role})
        with open(out, "ab") as sink:
            daemon = subprocess.Popen(
                self.argv(argv),
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
                cwd="/",
                umask=0o022,
            )
        self.folder.pid_file(role).write_text(f"{daemon.pid}\n")

    def wait_for(self, role: str, ready: Callable[[], bool], limit_s: float) -> None:
        """Wait until a daemon is ready; raises DevclusterError with its log's end when it died or is late."""
        deadline = time.monotonic() + limit_s
        missed = 0  # in the moment of exec a process has no environment to know it by
        while not ready():
            missed = 0 if self.alive(role) else missed + 1
            if missed > DEAD_AFTER:
                raise DevclusterError(f"{role} ended at its start\n{self.tail(role)}")
            if time.monotonic() > deadline:
                raise DevclusterError(f"{role} was not ready after {limit_s:.0f} s\n{self.tail(role)}")
            time.sleep(POLL_S)

    def tail(self, role: str) -> str:
        """The last lines that a daemon wrote."""
        log = self.log_of(role)
        lines: list[str] = []
        for path in (log, log.with_suffix(".out")):
            if path.is_file():
                lines += [f"  {line}" for line in path.read_text(errors="replace").splitlines()[-TAIL_LINES:]]
        return "\n".join([f"end of {log}:", *lines]) if lines else f"{log} is empty"


def start_munged(cluster: Cluster) -> None:
    """An own munged, with an own key and socket: the system's is left alone."""
    folder = cluster.folder
    socket_path = folder.munge_socket
    argv = ["munged", "--foreground", "--force", "--num-threads=4", "--origin=127.0.0.1"]  # the host's name may have no address
    argv += [f"--key-file={folder.munge_key}", f"--socket={socket_path}", f"--seed-file={folder.state}/munged.seed"]
    argv += [f"--pid-file={folder.run}/munged-own.pid", f"--log-file={folder.log_file('munged')}"]
    socket_path.unlink(missing_ok=True)
    cluster.start("munged", argv)
    cluster.wait_for("munged", socket_path.exists, limit_s=15)


def start_slurmctld(cluster: Cluster) -> None:
    """The controller; ready when it answers a ping."""
    cluster.start("slurmctld", ["slurmctld", "-D", "-f", str(cluster.folder.slurm_conf)])
    cluster.wait_for("slurmctld", lambda: " is UP" in cluster.ask("scontrol", "ping").stdout, limit_s=60)


def start_slurmd(cluster: Cluster, node: str) -> None:
    """A node's daemon."""
    cluster.start(node, ["slurmd", "-D", "-N", node, "-f", str(cluster.folder.slurm_conf)])


@dataclass(frozen=True)
class NodeState:
    """A node as sinfo shows it: `flags` holds the marks behind the name (`*` does not respond)."""

    name: str
    state: str
    reason: str = ""

    @property
    def up(self) -> bool:
        """Whether jobs can run there."""
        return self.state in {"idle", "allocated", "mixed", "completing"}


def node_states(cluster: Cluster) -> dict[str, NodeState]:
    """Every node's state, empty when the controller does not answer."""
    if not cluster.alive("slurmctld"):
        return {}
    asked = cluster.ask("sinfo", "-h", "-N", "-p", "main", "-o", "%N|%T|%E")
    rows = [line.split("|", 2) for line in asked.stdout.splitlines() if line.count("|") >= 2]
    return {name: NodeState(name, state, "" if reason == "none" else reason) for name, state, reason in rows}
