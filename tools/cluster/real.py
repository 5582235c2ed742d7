"""Whether this machine already belongs to a real Slurm cluster: such a machine is never changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from . import procs

CONF_PLACES = (
    "etc/slurm/slurm.conf",
    "etc/slurm-llnl/slurm.conf",
    "usr/local/etc/slurm.conf",
    "opt/slurm/etc/slurm.conf",
    "run/slurm/conf/slurm.conf",
    "var/spool/slurmd/conf-cache/slurm.conf",
)
DAEMONS = {"slurmctld", "slurmd", "slurmdbd", "sackd"}


def real_cluster(environ: Mapping[str, str], root: Path = Path("/")) -> str:
    """What shows that a Slurm not of devcluster's making is configured or runs here; empty when nothing does."""
    named = environ.get("SLURM_CONF", "")
    if named and not _is_devcluster(Path(named)):
        return f"SLURM_CONF={named}"
    for place in CONF_PLACES:
        if (root / place).is_file():
            return str(root / place)
    for process in procs.snapshot().values():
        if procs.command(process.pid) in DAEMONS and procs.OWNER not in procs.environ(process.pid):
            return f"{procs.command(process.pid)} runs (pid {process.pid})"
    return ""


def _is_devcluster(conf: Path) -> bool:
    return (conf.parent.parent / "cluster.json").is_file()
