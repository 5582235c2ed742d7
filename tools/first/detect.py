"""Is a Slurm configured on this machine already? Then nothing is installed, and its owner's cluster is offered."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.procs import OWNER, PROC, environ, snapshot

CONFIGURATIONS = (
    Path("/etc/slurm/slurm.conf"),
    Path("/etc/slurm-llnl/slurm.conf"),
    Path("/usr/local/etc/slurm.conf"),
    Path("/opt/slurm/etc/slurm.conf"),
    Path("/run/slurm/conf/slurm.conf"),
    Path("/var/spool/slurmd/conf-cache/slurm.conf"),
)
DAEMONS = ("slurmctld", "slurmd", "sackd")


@dataclass(frozen=True)
class Found:
    """A Slurm that is not ours, and how it showed."""

    signs: tuple[str, ...]
    cluster: str = ""


def ping(env: Mapping[str, str]) -> str:
    """The cluster's name when its controller answers, else nothing."""
    try:
        up = subprocess.run(["scontrol", "ping"], capture_output=True, text=True, timeout=15, env=dict(env), check=False)
        if up.returncode != 0 or "UP" not in up.stdout:
            return ""
        config = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, timeout=15, env=dict(env), check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    for line in config.stdout.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "ClusterName":
            return value.strip()
    return "unknown"


def running_daemons() -> Iterator[tuple[str, str]]:
    """(name, command line) of each Slurm daemon of this machine that belongs to no devcluster."""
    for pid in snapshot():
        try:
            words = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
            name = (PROC / str(pid) / "comm").read_text().strip()
        except OSError:
            continue
        if name in DAEMONS and OWNER not in environ(pid):
            yield name, " ".join(filter(None, words))


def find_slurm(
    env: Mapping[str, str] = os.environ,
    *,
    configurations: Sequence[Path] = CONFIGURATIONS,
    daemons: Callable[[], Iterator[tuple[str, str]]] = running_daemons,
    ask: Callable[[Mapping[str, str]], str] = ping,
) -> Found | None:
    """What shows that a Slurm is configured here, or None. The devcluster's own shell does not count."""
    if env.get("SLURMTRAIN_SITE") == "devcluster":
        return None
    signs = [f"SLURM_CONF={env['SLURM_CONF']}"] if env.get("SLURM_CONF") else []
    signs += [str(path) for path in configurations if path.exists()]
    signs += [f"running {line}" for _, line in daemons()]
    cluster = ask(env)
    if cluster:
        signs.append(f"scontrol ping: cluster {cluster} answers")
    return Found(tuple(signs), cluster) if signs else None
