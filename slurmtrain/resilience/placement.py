"""Which of the nodes that may be used an attempt gets, and whether the allocation is what was asked for. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurmtrain.config.plan import Plan
from slurmtrain.config.site import SiteConfig
from slurmtrain.errors import LaunchError
from slurmtrain.fabric.topology import choose_nodes, order_nodes, segment_nodes
from slurmtrain.slurm.types import JobInfo, NodePlace
from slurmtrain.units import format_size

MEMORY_TOLERANCE = 0.8
"""A node's RealMemory is less than what it was bought with; what a job gets without --mem=0 is much less."""


@dataclass(frozen=True)
class Chosen:
    """Nodes of the world, in its order; the allocation's others; those used although they are to be avoided."""

    nodes: tuple[str, ...]
    spares: tuple[str, ...]
    avoided_in_vain: tuple[str, ...] = ()


def choose(plan: Plan, nodes: Sequence[str], places: Sequence[NodePlace], excluded: Mapping[str, str]) -> Chosen:
    """`plan.nodes` of the allocation's nodes, neighbours together; excluded ones only where there are not enough others.

    Raises PlacementError with both numbers when the allocation is too small.
    """
    good = [n for n in nodes if n not in excluded]
    bad = [n for n in nodes if n in excluded]
    pool = good + bad[: max(0, plan.nodes - len(good))]
    chosen = choose_nodes(pool, plan.nodes, places, segment=segment_nodes(plan))
    spares = order_nodes([n for n in nodes if n not in chosen], places)
    return Chosen(tuple(chosen), tuple(spares), tuple(n for n in chosen if n in excluded))


def check_grant(job: JobInfo | None, plan: Plan, site: SiteConfig) -> None:
    """Compare CPUs and memory of the job, per node, with what was asked. Raises LaunchError with the numbers when there are fewer."""
    if job is None:
        return
    cpus = site.node.cpus_per_gpu * plan.gpus_per_node
    if job.cpus_per_node is not None and job.cpus_per_node < cpus:
        raise LaunchError(
            f"job {job.job_id} has {job.cpus_per_node} CPUs per node, the world needs {cpus} "
            f"({plan.gpus_per_node} ranks x cpus_per_gpu = {site.node.cpus_per_gpu}): ask for --cpus-per-task={site.node.cpus_per_gpu}"
        )
    memory = expected_memory(plan, site)
    if memory and job.memory_per_node_bytes and job.memory_per_node_bytes < memory:
        whole = plan.gpus_per_node == site.node.gpus
        raise LaunchError(
            f"job {job.job_id} has {format_size(job.memory_per_node_bytes)} of memory per node, {plan.gpus_per_node} of {site.node.gpus} "
            f"ranks' share of a node is {format_size(memory / MEMORY_TOLERANCE)}: ask for {'--mem=0' if whole else 'more by --mem'}"
        )


def expected_memory(plan: Plan, site: SiteConfig) -> int:
    """Bytes that each node must offer: the ranks' share of what the site says of a node, less a tolerance; 0: not known."""
    return int((site.node.memory_bytes or 0) * MEMORY_TOLERANCE) * plan.gpus_per_node // site.node.gpus
