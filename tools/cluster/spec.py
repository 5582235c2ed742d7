"""What a cluster is asked to be, what was chosen for it, and where its files lie."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

TIMINGS = ("fast", "default")
SUITES = ("bookworm", "trixie")
TOPOLOGIES = ("tree", "block")
MAX_NODES = 60
MAX_GPUS = 16
SOCKET_PATH_BYTES = 107
"""What a Unix socket's address holds; slurmstepd puts `nodes/<node>/spool/<node>_<job>.<step>` below the folder."""
LONGEST_SOCKET = "/nodes/n60/spool/n60_9999999.4294967295"


class DevclusterError(Exception):
    """One line: what was wrong, where, what to do."""


@dataclass(frozen=True)
class Spec:
    """What the user asks for. `suite` names another Debian whose Slurm is used; empty: this machine's."""

    nodes: int = 6
    gpus: int = 4
    timings: str = "fast"
    topology: str = "tree"
    accounting: bool = False
    suite: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MAX_NODES:
            raise DevclusterError(f"--nodes {self.nodes}: from 1 to {MAX_NODES}")
        if not 0 <= self.gpus <= MAX_GPUS:
            raise DevclusterError(f"--gpus {self.gpus}: from 0 to {MAX_GPUS} per node")
        if self.topology == "block" and self.nodes % 2:
            raise DevclusterError(f"--topology block --nodes {self.nodes}: blocks hold 2 nodes; ask for an even number")

    @property
    def node_names(self) -> list[str]:
        return [f"n{i}" for i in range(1, self.nodes + 1)]

    @property
    def cpus(self) -> int:
        """CPUs that each node claims to have."""
        return max(8, 2 * self.gpus)

    def words(self) -> str:
        extra = (" accounting" if self.accounting else "") + (f" suite={self.suite}" if self.suite else "")
        return f"{self.nodes} nodes x {self.gpus} gpus, timings {self.timings}, topology {self.topology}{extra}"


@dataclass(frozen=True)
class Ports:
    """TCP ports on 127.0.0.1: a block that starts at `base`."""

    base: int

    @property
    def slurmctld(self) -> int:
        return self.base

    @property
    def slurmdbd(self) -> int:
        return self.base + 1

    @property
    def database(self) -> int:
        return self.base + 2

    @property
    def first_slurmd(self) -> int:
        return self.base + 3


@dataclass(frozen=True)
class Record:
    """A cluster as it stands: what was asked, and what was chosen for it; kept in `cluster.json`."""

    spec: Spec
    ports: Ports
    slurm: tuple[int, int]
    host: str

    def to_json(self) -> str:
        return json.dumps({"v": 1, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Record:
        raw = json.loads(text)
        major, minor = raw["slurm"]
        return cls(Spec(**raw["spec"]), Ports(**raw["ports"]), (major, minor), raw["host"])


@dataclass(frozen=True)
class Folder:
    """Every path of one cluster."""

    root: Path

    @property
    def record(self) -> Path:
        return self.root / "cluster.json"

    @property
    def etc(self) -> Path:
        return self.root / "etc"

    @property
    def slurm_conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def run(self) -> Path:
        """Pid files and sockets."""
        return self.root / "run"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def dev(self) -> Path:
        return self.root / "dev"

    @property
    def bin(self) -> Path:
        """The client commands of another suite."""
        return self.root / "bin"

    @property
    def munge_key(self) -> Path:
        return self.etc / "munge.key"

    @property
    def munge_socket(self) -> Path:
        return self.run / "munge"

    def pid_file(self, role: str) -> Path:
        return self.run / f"{role}.pid"

    def log_file(self, role: str) -> Path:
        """The log of slurmctld, slurmdbd, munged or the database; a node's log lies in its own folder."""
        return self.log / f"{role}.log"

    def node(self, name: str) -> Path:
        """All that a node's slurmd and slurmstepd write: a process with a file open here belongs to the node."""
        return self.root / "nodes" / name

    def load(self) -> Record | None:
        """The cluster that lies here, or None."""
        try:
            return Record.from_json(self.record.read_text())
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise DevclusterError(f"{self.record}: not readable ({error}); `down` removes the cluster") from error


def choose_folder(directory: str, name: str, environ: Mapping[str, str]) -> Folder:
    """`--dir`, else `--name`'s folder, else the cluster of this shell's `devcluster env`, else the default one."""
    chosen = directory or ("" if name else environ.get("SLURMTRAIN_DEVCLUSTER_DIR", ""))
    if chosen:
        root = Path(chosen)
    else:
        home = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME", "/root"), ".local/state"))
        root = Path(home, "slurmtrain", name or "devcluster")
    root = Path(os.path.abspath(root))  # noqa: PTH100 - resolve() would follow links that the user chose
    room = SOCKET_PATH_BYTES - len(os.fsencode(root)) - len(LONGEST_SOCKET)
    if room < 0 or any(c.isspace() or c in "#%\\=,[]" for c in str(root)):
        limit = SOCKET_PATH_BYTES - len(LONGEST_SOCKET)
        raise DevclusterError(f"folder {root}: at most {limit} bytes (socket paths), no spaces or #%\\=,[]; choose another with --dir")
    return Folder(root)
