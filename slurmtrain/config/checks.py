"""Do the parts of a job fit each other and the site? Pure functions; each message says which values would do.

`resolve_dp` alone does the arithmetic of the world; `fabric.plan` calls it too. What the nodes' topology allows is placement's
affair, how short a limit may be is launch's, and what the tokens say of themselves is compared by `data.index`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any, NoReturn

from slurmtrain.config.job import JobConfig
from slurmtrain.config.site import SiteConfig
from slurmtrain.errors import ConfigError


def check_job(job: JobConfig, site: SiteConfig, *, where: str = "") -> None:
    """Raise ConfigError for the first thing that does not fit; `where` names the job file in it (default: the run)."""
    try:
        for check in _CHECKS:
            check(job, site)
        _check_batch(job, resolve_dp(job, gpus_per_node(job, site)))
    except ConfigError as error:
        raise ConfigError(error.problem, where=where or error.where, key=error.key, value=error.value) from None


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
        _refuse(job, "slurm.nodes", nodes, f"{fault}: use {_multiples(step, near=nodes)} nodes")
    dp = world // one
    if parallel.dp is not None and parallel.dp != dp:
        fault = f"is not what a {count} ranks leaves, {world} / (tp x pp x cp = {one}) = {dp}"
        _refuse(job, "parallel.dp", parallel.dp, f"{fault}: write {dp}, or leave dp out")
    return dp


def _refuse(job: JobConfig, key: str, value: Any, problem: str) -> NoReturn:
    raise ConfigError(problem, where=f"job {job.run.name}", key=key, value=value)


def _check_release(job: JobConfig, _site: SiteConfig) -> None:
    parallel, model = job.parallel, job.model
    if parallel.cp != 1:
        _refuse(job, "parallel.cp", parallel.cp, "context parallelism is not in this release: leave cp at 1")
    if parallel.ep != 1:
        _refuse(job, "parallel.ep", parallel.ep, "expert parallelism is not in this release: leave ep at 1")
    if model.tied_embeddings and parallel.pp > 1:
        fault = f"tied embeddings over pipeline stages (pp = {parallel.pp}) are not in this release: use pp = 1, or untie them"
        _refuse(job, "model.tied_embeddings", True, fault)  # noqa: FBT003


def _check_model(job: JobConfig, _site: SiteConfig) -> None:
    model = job.model
    if model.heads % model.kv_heads:
        _refuse(job, "model.kv_heads", model.kv_heads, f"does not divide heads = {model.heads}: use {_divisors(model.heads)}")
    if model.head_dim % 2:
        _refuse(job, "model.head_dim", model.head_dim, "must be even, since rotary positions turn pairs: choose other hidden or heads")


def _check_tensor(job: JobConfig, _site: SiteConfig) -> None:
    model, tp = job.model, job.parallel.tp
    sizes = {"heads": model.heads, "kv_heads": model.kv_heads, "ffn": model.ffn, "sequence_length": job.training.sequence_length}
    for name, size in sizes.items():
        if size % tp:
            _refuse(job, "parallel.tp", tp, f"does not divide {name} = {size}: use {_divisors(gcd(*sizes.values()))}")


def _check_stages(job: JobConfig, _site: SiteConfig) -> None:
    layers, pp = job.model.layers, job.parallel.pp
    if layers % pp:
        _refuse(job, "parallel.pp", pp, f"does not divide layers = {layers}: use {_divisors(layers)}")


def _check_schedule(job: JobConfig, _site: SiteConfig) -> None:
    optimizer, steps = job.optimizer, job.training.steps
    if max(optimizer.betas) >= 1:
        _refuse(job, "optimizer.betas", list(optimizer.betas), "both must be less than 1, such as [0.9, 0.95]")
    if optimizer.min_lr > optimizer.lr:
        _refuse(job, "optimizer.min_lr", optimizer.min_lr, f"must be at most lr = {optimizer.lr:g}")
    if optimizer.warmup_steps > steps:
        _refuse(job, "optimizer.warmup_steps", optimizer.warmup_steps, f"must be at most training.steps = {steps}")
    if optimizer.total_steps is not None and optimizer.total_steps < optimizer.warmup_steps:
        fault = f"must be at least warmup_steps = {optimizer.warmup_steps}, or be left out: then it is training.steps = {steps}"
        _refuse(job, "optimizer.total_steps", optimizer.total_steps, fault)


def _check_site(job: JobConfig, site: SiteConfig) -> None:
    slurm, has = job.slurm, site.node.gpus
    if slurm.gpus_per_node is not None and slurm.gpus_per_node > has:
        _refuse(job, "slurm.gpus_per_node", slurm.gpus_per_node, f"a node of site {site.name} has {has}: use 1 to {has}")


def _check_batch(job: JobConfig, dp: int) -> None:
    batch, micro, pp = job.training.global_batch, job.training.micro_batch, job.parallel.pp
    unit = dp * micro
    if batch % unit:
        fault = f"is not a multiple of dp x micro_batch = {dp} x {micro} = {unit}: use {_multiples(unit, near=batch)}"
        _refuse(job, "training.global_batch", batch, fault)
    if batch // unit < pp:
        fault = f"makes {batch // unit} micro-batches (dp x micro_batch = {dp} x {micro}), fewer than pp = {pp} stages"
        _refuse(job, "training.global_batch", batch, f"{fault}: use {unit * pp} or more")


_CHECKS: tuple[Callable[[JobConfig, SiteConfig], None], ...] = (
    _check_release,
    _check_model,
    _check_tensor,
    _check_stages,
    _check_schedule,
    _check_site,
)


def _divisors(number: int, most: int = 8) -> str:
    """The divisors in words; only the first few of many.

    >>> _divisors(8), _divisors(1)
    ('1, 2, 4 or 8', '1')
    """
    found = [n for n in range(1, min(number, 4096) + 1) if number % n == 0][:most]
    return _or([str(n) for n in found])


def _multiples(unit: int, *, near: int) -> str:
    """The multiples of `unit` around a number, in words.

    >>> _multiples(8, near=12), _multiples(8, near=3)
    ('8 or 16', '8')
    """
    below = near // unit * unit
    return _or([str(n) for n in (below, below + unit) if n > 0])


def _or(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
