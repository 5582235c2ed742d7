"""The layout of an elastic run on fewer nodes than were planned: data parallelism gives way, all else stays. Pure.

| of the plan | on fewer nodes |
|---|---|
| tp, pp, cp, ep, vp, stages, schedule, order, dp_mode, cp_mode, GPUs of a node, NVLink domains | stay |
| dp | nodes x GPUs of a node / (tp x pp x cp) |
| global batch, at every size of a ramp | stays: each rank accumulates more micro-batches |
| micro_batch | stays; the next smaller one where dp x micro_batch does not divide the batch, or the schedule cannot run so many |
| dp_shard | stays; where it does not divide dp, the next larger divisor, for a smaller one would hold more on each rank |

Samples, their order, the schedule of the learning rate and the checkpoints depend on none of these, so a run may change its size
between any two attempts. A number of nodes has no layout where tp x pp x cp does not divide its GPUs, where dp does not divide the
batch, or where a node's memory could not hold its share of a checkpoint (`config.check_checkpoint`).
"""

from __future__ import annotations

from slurmtrain.config.check_checkpoint import check_how
from slurmtrain.config.check_layout import check_batch
from slurmtrain.config.job import JobConfig
from slurmtrain.config.plan import Plan
from slurmtrain.config.refusal import either, refuse
from slurmtrain.config.site import SiteConfig
from slurmtrain.errors import ConfigError, PlacementError
from slurmtrain.fabric.layout import check_layout

_SHOWN = 8


def resize(plan: Plan, job: JobConfig, site: SiteConfig, nodes: int) -> Plan | None:
    """The largest layout on at most `nodes` nodes; None where there is none on `recovery.min_nodes` or more.

    `plan`: the run's own (plan.json), never that of an attempt: it says how large the run may be again.
    """
    for count in range(min(nodes, plan.nodes), max(1, job.recovery.min_nodes) - 1, -1):
        if (found := layout_on(plan, job, site, count)) is not None:
            return found
    return None


def sizes(plan: Plan, job: JobConfig, site: SiteConfig) -> list[int]:
    """All numbers of nodes that have a layout, ascending; `recovery.min_nodes` plays no part."""
    return [count for count in range(1, plan.nodes + 1) if layout_on(plan, job, site, count) is not None]


def fewest(plan: Plan, job: JobConfig, site: SiteConfig) -> int:
    """The fewest nodes that the run can go on with; the plan's own where the job is not elastic."""
    if not job.recovery.elastic:
        return plan.nodes
    return next((count for count in sizes(plan, job, site) if count >= job.recovery.min_nodes), plan.nodes)


def layout_on(plan: Plan, job: JobConfig, site: SiteConfig, nodes: int) -> Plan | None:
    """The layout on so many nodes; None where there is none, as for a script ([entry]) on other nodes than its own."""
    if nodes == plan.nodes:
        return plan
    if job.entry is not None:
        return None
    world, one = nodes * plan.gpus_per_node, plan.tp * plan.pp * plan.cp
    if world % one or _too_large(job, site, nodes):
        return None
    dp = world // one
    micro_batch = _micro_batch(job, plan.micro_batch, dp)
    if micro_batch is None:
        return None
    changed = {"nodes": nodes, "world": world, "dp": dp, "dp_shard": _shard(plan.dp_shard, dp), "micro_batch": micro_batch}
    found = plan.model_copy(update={**changed, "microbatches": plan.global_batch // (dp * micro_batch)})
    return found if _can_be_placed(found) else None


def check_elastic(plan: Plan, job: JobConfig, site: SiteConfig) -> None:
    """Raise ConfigError for an elastic job whose least size has no layout, or that has no other size than its own."""
    if not job.recovery.elastic or job.entry is not None:
        return
    least, can = job.recovery.min_nodes, sizes(plan, job, site)
    if least > plan.nodes:
        refuse(job, "recovery.min_nodes", least, f"is more than slurm.nodes = {plan.nodes}: use {either(can[-_SHOWN:])}")
    if plan.nodes > 1 and can == [plan.nodes]:
        fault = f"no other number of nodes than {plan.nodes} has a layout ({_why(plan, job)}): leave it out"
        refuse(job, "recovery.elastic", True, fault)  # noqa: FBT003
    if least > 1 and least not in can:
        refuse(job, "recovery.min_nodes", least, f"so many nodes have no layout ({_why(plan, job)}): use {either(can[-_SHOWN:])}")


def _why(plan: Plan, job: JobConfig) -> str:
    """What a number of nodes must fit."""
    one, batch = plan.tp * plan.pp * plan.cp, job.training.global_batch
    return f"tp x pp x cp = {one} must divide its GPUs, {plan.gpus_per_node} a node, and what that leaves global_batch = {batch}"


def _can_be_placed(plan: Plan) -> bool:
    """Where tp is the fastest axis its groups are the first ones of the larger world, which was placed; else all are looked at."""
    if plan.dp % plan.ep:
        return False
    if plan.order[0] == "tp":
        return True
    try:
        check_layout(plan)
    except PlacementError:
        return False
    return True


def _micro_batch(job: JobConfig, largest: int, dp: int) -> int | None:
    """The largest, up to the job's own, with which the batch divides over the ranks and the pipeline's schedule runs."""
    if job.training.global_batch % dp:
        return None
    for size in range(largest, 0, -1):
        asked = job.model_copy(update={"training": job.training.model_copy(update={"micro_batch": size})})
        try:
            check_batch(asked, dp)
        except ConfigError:
            continue
        return size
    return None


def _shard(wanted: int | None, dp: int) -> int | None:
    """Data-parallel ranks that share one copy; None: all of them.

    >>> _shard(4, 8), _shard(4, 6), _shard(4, 2), _shard(None, 6)
    (4, 6, 2, None)
    """
    if wanted is None:
        return None
    return next((size for size in range(wanted, dp + 1) if dp % size == 0), dp)


def _too_large(job: JobConfig, site: SiteConfig, nodes: int) -> bool:
    """Whether a node's memory could not hold its share of a checkpoint, where it has to."""
    try:
        check_how(job.model_copy(update={"slurm": job.slurm.model_copy(update={"nodes": nodes})}), site)
    except ConfigError:
        return True
    return False
