"""A job that runs a script of the user's: what may not stand beside [entry], and what has no meaning for a script."""

from __future__ import annotations

from slurmtrain.config.draft import Draft
from slurmtrain.config.entry import EntryConfig
from slurmtrain.config.job import OF_OUR_TRAINER, JobConfig
from slurmtrain.config.refusal import divisors, refuse
from slurmtrain.config.site import SiteConfig
from slurmtrain.errors import ConfigError

_OF_OUR_RECOVERY = ("numerics", "corruption", "stragglers")


def check_form(draft: Draft) -> None:
    """Refuse what says nothing to a script, by who said it. Raises ConfigError."""
    if "entry" not in draft.values:
        return
    for key in OF_OUR_TRAINER:
        if key in draft.values:
            speakers = [draft.where(said) for said in draft.said if said.partition(".")[0] == key]
            where = speakers[0] if speakers else draft.where(key)
            raise ConfigError(f"[entry] and [{key}] cannot both be given: leave one out", where=where, key=key)
    for part in _OF_OUR_RECOVERY:
        key = f"recovery.{part}"
        if draft.get(key) is not None:
            raise ConfigError("looks into our own trainer, and this job runs a script: leave it out", where=draft.where(key), key=key)


def check_entry(job: JobConfig, entry: EntryConfig, site: SiteConfig) -> None:
    """Raise ConfigError for the first thing that does not fit."""
    gpus = job.slurm.gpus_per_node or site.node.gpus
    if job.recovery.elastic:
        fault = "only our own trainer keeps its global batch on fewer nodes: leave it out with [entry]"
        refuse(job, "recovery.elastic", job.recovery.elastic, fault)
    if entry.ranks_per_node is not None and (entry.ranks_per_node > gpus or gpus % entry.ranks_per_node):
        fault = f"the {gpus} GPUs of a node cannot be shared evenly: use {divisors(gpus)}"
        refuse(job, "entry.ranks_per_node", entry.ranks_per_node, fault)
    if entry.mpi and site.launcher == "srun" and site.slurm.mpi == "none":
        refuse(job, "entry.mpi", entry.mpi, f'site {site.name} starts ranks without MPI (slurm.mpi = "none")')
