"""Is a Slurm configured on this machine already? Then nothing is installed, and its owner's cluster is offered."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cluster.real import real_cluster


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


def find_slurm(
    env: Mapping[str, str] = os.environ,
    *,
    shows: Callable[[Mapping[str, str]], str] = real_cluster,
    ask: Callable[[Mapping[str, str]], str] = ping,
) -> Found | None:
    """What shows that a Slurm is configured here, or None. A devcluster, and a shell that speaks to one, do not count."""
    sign = shows(env)
    cluster = "" if env.get("SLURMTRAIN_DEVCLUSTER_DIR") and not sign else ask(env)
    signs = [sign] if sign else []
    if cluster:
        signs.append(f"scontrol ping: cluster {cluster} answers")
    return Found(tuple(signs), cluster) if signs else None
