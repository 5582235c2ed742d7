"""The Plan of a job on a site's nodes. Pure."""

from __future__ import annotations

from slurmtrain.config.checks import resolve_dp
from slurmtrain.config.entry import EntryConfig
from slurmtrain.config.job import JobConfig
from slurmtrain.config.plan import Plan
from slurmtrain.config.site import SiteConfig
from slurmtrain.errors import PlacementError
from slurmtrain.fabric.layout import check_layout, stages
from slurmtrain.fabric.stages import cut


def build_plan(job: JobConfig, site: SiteConfig) -> Plan:
    """The layout that the job asks for, on nodes as the site describes them.

    Raises PlacementError when it cannot be placed, and ConfigError where dp does not follow (`config.checks.resolve_dp`).
    """
    if job.entry is not None:
        return _of_script(job, job.entry, site)
    gpus = job.slurm.gpus_per_node or site.node.gpus
    parallel, training = job.parallel, job.training
    spares = job.slurm.spares
    assert isinstance(spares, int), "planner.spares.with_spares chooses first"
    dp, count = resolve_dp(job, gpus), parallel.pp * parallel.resolved_vp()
    plan = Plan(
        world=job.slurm.nodes * gpus,
        nodes=job.slurm.nodes,
        spares=spares,
        gpus_per_node=gpus,
        tp=parallel.tp,
        cp=parallel.cp,
        ep=parallel.ep,
        dp=dp,
        pp=parallel.pp,
        order=parallel.order,
        nvlink_domain=site.node.nvlink_domain,
        block_nodes=site.node.block_nodes,
        stages=stages(job.model.layers, count, cut(job.model, training.sequence_length, count, parallel.stages)),
        global_batch=training.global_batch,
        micro_batch=training.micro_batch,
        microbatches=_microbatches(training.global_batch, training.micro_batch, dp),
        dp_mode=parallel.dp_mode,
        dp_shard=parallel.dp_shard,
        cp_mode=parallel.cp_mode,
        schedule=parallel.resolved_schedule(),
        vp=parallel.resolved_vp(),
    )
    check_layout(plan)
    return plan


def _of_script(job: JobConfig, entry: EntryConfig, site: SiteConfig) -> Plan:
    """What is known of a script's world: its ranks; how it shares its work among them is its own affair."""
    gpus, spares = job.slurm.gpus_per_node or site.node.gpus, job.slurm.spares
    assert isinstance(spares, int), "planner.spares.with_spares chooses first"
    world = job.slurm.nodes * (entry.ranks_per_node or gpus)
    return Plan(
        world=world,
        nodes=job.slurm.nodes,
        spares=spares,
        gpus_per_node=gpus,
        ranks_per_node=entry.ranks_per_node,
        tp=1,
        cp=1,
        ep=1,
        dp=world,
        pp=1,
        order=job.parallel.order,
        nvlink_domain=site.node.nvlink_domain,
        block_nodes=site.node.block_nodes,
        stages=((),),
        global_batch=world,
        micro_batch=1,
        microbatches=1,
        dp_mode="ddp",
    )


def _microbatches(global_batch: int, micro_batch: int, dp: int) -> int:
    if global_batch % (dp * micro_batch):
        raise PlacementError(
            f"training.global_batch = {global_batch} is not a multiple of dp x micro_batch = {dp} x {micro_batch} = {dp * micro_batch}"
        )
    return global_batch // (dp * micro_batch)
