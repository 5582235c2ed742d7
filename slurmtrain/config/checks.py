"""Do the parts of a job fit each other and the site? Pure functions; each message says which values would do.

`resolve_dp` alone does the arithmetic of the world; `fabric.plan` calls it too. What the nodes' topology allows is placement's
affair, how short a limit may be is launch's, and what the tokens say of themselves is compared by `data.index`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from slurmtrain.config.check_checkpoint import check_how, check_when
from slurmtrain.config.check_entry import check_entry
from slurmtrain.config.check_layout import (
    check_batch,
    check_context,
    check_data_parallel,
    check_schedule,
    check_sequence,
    check_stages,
    check_tensor,
)
from slurmtrain.config.check_model import check_first_values, check_positions, check_rope_scaling, check_shape
from slurmtrain.config.check_recovery import check_compared, check_recovery
from slurmtrain.config.check_training import check_data, check_evaluation, check_numerics, check_optimizer
from slurmtrain.config.job import JobConfig
from slurmtrain.config.keeping import check_spares
from slurmtrain.config.refusal import multiples, refuse
from slurmtrain.config.site import SiteConfig
from slurmtrain.errors import ConfigError


def check_job(job: JobConfig, site: SiteConfig, *, where: str = "") -> None:
    """Raise ConfigError for the first thing that does not fit; `where` names the job file in it (default: the run)."""
    try:
        check_spares(job, site)
        if job.entry is not None:
            _check_site(job, site)
            check_entry(job, job.entry, site)
        else:
            _check_trainer(job, site)
    except ConfigError as error:
        raise ConfigError(error.problem, where=where or error.where, key=error.key, value=error.value) from None


def _check_trainer(job: JobConfig, site: SiteConfig) -> None:
    for check in _OF_JOB:
        check(job)
    for with_site in _OF_SITE:
        with_site(job, site)
    dp = resolve_dp(job, gpus_per_node(job, site))
    check_data_parallel(job, dp)
    check_batch(job, dp)
    check_compared(job, dp)


def gpus_per_node(job: JobConfig, site: SiteConfig) -> int:
    """Ranks of each node: what the job asks, else all that the site has."""
    return job.slurm.gpus_per_node or site.node.gpus


def resolve_dp(job: JobConfig, gpus_per_node: int) -> int:
    """The data-parallel degree, nodes * gpus_per_node / (tp * pp * cp); ep lies inside it. Raises ConfigError."""
    nodes, parallel = job.slurm.nodes, job.parallel
    one = parallel.tp * parallel.pp * parallel.cp
    world = nodes * gpus_per_node
    count = f"world of {nodes} {'nodes' if nodes > 1 else 'node'} x {gpus_per_node} GPUs = {world}"
    if world % one:
        step = one // gcd(one, gpus_per_node)
        fault = f"a {count} ranks is not divisible by tp x pp x cp = {parallel.tp} x {parallel.pp} x {parallel.cp} = {one}"
        refuse(job, "slurm.nodes", nodes, f"{fault}: use {multiples(step, near=nodes)} nodes")
    dp = world // one
    if parallel.dp is not None and parallel.dp != dp:
        fault = f"is not what a {count} ranks leaves, {world} / (tp x pp x cp = {one}) = {dp}"
        refuse(job, "parallel.dp", parallel.dp, f"{fault}: write {dp}, or leave dp out")
    return dp


def _check_site(job: JobConfig, site: SiteConfig) -> None:
    slurm, has = job.slurm, site.node.gpus
    if slurm.gpus_per_node is not None and slurm.gpus_per_node > has:
        refuse(job, "slurm.gpus_per_node", slurm.gpus_per_node, f"a node of site {site.name} has {has}: use 1 to {has}")


def _check_release(job: JobConfig) -> None:
    if job.parallel.ep != 1:
        refuse(job, "parallel.ep", job.parallel.ep, "expert parallelism is not in this release: leave ep at 1")


_OF_JOB: tuple[Callable[[JobConfig], None], ...] = (
    _check_release,
    check_shape,
    check_positions,
    check_rope_scaling,
    check_first_values,
    check_tensor,
    check_sequence,
    check_context,
    check_schedule,
    check_stages,
    check_optimizer,
    check_evaluation,
    check_when,
    check_recovery,
)
_OF_SITE: tuple[Callable[[JobConfig, SiteConfig], None], ...] = (_check_site, check_numerics, check_data, check_how)
