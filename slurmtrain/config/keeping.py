"""Whether a job outlives its nodes: `--no-kill`, and what it needs. Pure.

| spares, or elastic | continuation | commands on nodes | `--no-kill` |
|---|---|---|---|
| no | any | any | no: there is nothing to go on with, and Slurm requeues a job that loses a node |
| yes | requeue | yes | yes: Slurm never requeues such a job, so the supervisor does, and its deputy when the batch host is lost |
| yes | requeue | no | no: when the batch host is lost nobody could ask for the requeue; spares are refused, an elastic job Slurm requeues |
| yes | chain | any | no: the next link goes on when this one is lost |
"""

from __future__ import annotations

from slurmtrain.config.job import JobConfig
from slurmtrain.config.refusal import refuse
from slurmtrain.config.site import SiteConfig


def outlives_nodes(job: JobConfig, site: SiteConfig) -> bool:
    """Whether the job is asked for with --no-kill."""
    more = bool(job.slurm.spares) or job.recovery.elastic
    return more and job.slurm.continuation == "requeue" and job.recovery.in_place and site.slurm.commands_on_nodes


def check_spares(job: JobConfig, site: SiteConfig) -> None:
    """Refuse spares that could not be used when a node dies. Raises ConfigError."""
    slurm = job.slurm
    if not slurm.spares or slurm.spares == "auto":  # where they are of no use auto is none
        return
    if not job.recovery.in_place:
        refuse(job, "slurm.spares", slurm.spares, "would stand idle: recovery.in_place = false leaves them no use; set one of the two")
    if not site.slurm.commands_on_nodes and slurm.continuation != "chain":
        fault = f"compute nodes of site {site.name} have no Slurm commands: nobody could requeue the job when its batch host is lost"
        refuse(job, "slurm.spares", slurm.spares, f'{fault}: use 0, or slurm.continuation = "chain"')
