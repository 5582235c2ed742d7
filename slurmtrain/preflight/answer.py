"""What one node found out about itself: the answer, its JSON, and how the facts are gathered."""

from __future__ import annotations

import json
import os
import platform
import resource
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from slurmtrain import __version__
from slurmtrain.atomic import to_json

ANSWER_VERSION = 1
PACKAGES = ("torch", "mpi4py", "numpy", "h5py", "xxhash", "pydantic", "submitit", "mpich")
"""Whose versions are recorded with an attempt."""
UNLIMITED = -1
LIMITS: Mapping[str, tuple[int, int]] = {
    "c": (resource.RLIMIT_CORE, 1024),
    "d": (resource.RLIMIT_DATA, 1024),
    "f": (resource.RLIMIT_FSIZE, 1024),
    "i": (resource.RLIMIT_SIGPENDING, 1),
    "l": (resource.RLIMIT_MEMLOCK, 1024),
    "m": (resource.RLIMIT_RSS, 1024),
    "n": (resource.RLIMIT_NOFILE, 1),
    "q": (resource.RLIMIT_MSGQUEUE, 1),
    "s": (resource.RLIMIT_STACK, 1024),
    "t": (resource.RLIMIT_CPU, 1),
    "u": (resource.RLIMIT_NPROC, 1),
    "v": (resource.RLIMIT_AS, 1024),
}
"""Flag of bash's ulimit -> the kernel's limit, and its unit in bash."""


@dataclass(frozen=True)
class NodeAnswer:
    """`problems`: what the node itself could not do; `limits`: bash's ulimit flags, soft, in bash's units, -1 for unlimited.

    `t`: when it was asked, by its own clock; `facts`: of the sources that it has looked at; `unknown`: of those that gave none, what was
    said and what to do; `seen`: when the answer was read, by the reader's clock.
    """

    node: str
    ok: bool
    problems: tuple[str, ...]
    python: str
    version: str
    cpus: int
    memory_bytes: int
    nonce: str = ""
    limits: Mapping[str, int] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    t: float = 0.0
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    unknown: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    seen: float = 0.0

    def to_json(self) -> bytes:
        return to_json({"v": ANSWER_VERSION, **asdict(self)})


def read_answer(path: Path) -> NodeAnswer | None:
    """A node's answer; None where there is none yet, or none that is whole."""
    try:
        raw: dict[str, Any] = json.loads(path.read_bytes())
        known = {f.name for f in fields(NodeAnswer)}
        values: dict[str, Any] = {k: tuple(v) if k == "problems" else v for k, v in raw.items() if k in known}
        values["unknown"] = {source: (str(said), str(remedy)) for source, (said, remedy) in raw.get("unknown", {}).items()}
        return NodeAnswer(**values)
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def describe(node: str, nonce: str, problems: Iterable[str], environ: Mapping[str, str]) -> NodeAnswer:
    """The answer of the machine that this runs on."""
    found = tuple(problems)
    return NodeAnswer(
        node, not found, found, platform.python_version(), __version__, cpus(environ), memory_bytes(environ), nonce, limits(), packages()
    )


def node_name(environ: Mapping[str, str]) -> str:
    """SLURMTRAIN_NODE (mpiexec emulates nodes by it), else Slurm's name of this node, else the host's."""
    return environ.get("SLURMTRAIN_NODE") or environ.get("SLURMD_NODENAME") or platform.node()


def limits() -> dict[str, int]:
    """Soft limits by bash's flag, in bash's units."""
    soft = {flag: (resource.getrlimit(number)[0], unit) for flag, (number, unit) in LIMITS.items()}
    return {flag: UNLIMITED if value == resource.RLIM_INFINITY else value // unit for flag, (value, unit) in soft.items()}


def packages() -> dict[str, str]:
    """Versions of those of PACKAGES that are installed."""
    return {name: version for name in PACKAGES if (version := _version(name))}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def cpus(environ: Mapping[str, str]) -> int:
    """CPUs that the job has on this node: what Slurm says, else what this process may run on."""
    said = environ.get("SLURM_CPUS_ON_NODE", "")
    return int(said) if said.isdigit() else len(os.sched_getaffinity(0))


def memory_bytes(environ: Mapping[str, str]) -> int:
    """Memory that the job may use on this node: the least of the machine's, its cgroup's and what Slurm says (MB; 0 means all)."""
    said = environ.get("SLURM_MEM_PER_NODE", "")
    known = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_cgroup_limits()]
    return min([*known, int(said) << 20] if said.isdigit() and int(said) else known)


def _cgroup_limits(files: tuple[str, ...] = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")) -> list[int]:
    found: list[int] = []
    for name in files:
        try:
            text = Path(name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            found.append(int(text))
    return found
