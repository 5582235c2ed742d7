"""What a layout is on nodes: stages, promised NVLink domains, and the reasons with numbers why it cannot be placed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from slurmtrain.config.parallel import AXES
from slurmtrain.config.plan import Plan
from slurmtrain.errors import PlacementError
from slurmtrain.fabric.placement import groups


def layout(
    *,
    nodes: int,
    gpus_per_node: int,
    tp: int = 1,
    cp: int = 1,
    ep: int = 1,
    dp: int = 1,
    pp: int = 1,
    order: Sequence[str] = AXES,
    **more: object,
) -> Plan:
    """A checked Plan from degrees alone (one layer per stage, one micro-batch per rank): for the planner and for tests.

    `more`: other fields of Plan. Raises PlacementError.
    """
    fields: dict[str, object] = {
        "world": nodes * gpus_per_node,
        "spares": 0,
        "nvlink_domain": "node",
        "block_nodes": 1,
        "stages": stages(pp, pp),
        "global_batch": dp,
        "micro_batch": 1,
        "microbatches": 1,
        "dp_mode": "ddp",
        **more,
    }
    degrees = {"tp": tp, "cp": cp, "ep": ep, "dp": dp, "pp": pp}
    plan = Plan.model_validate({"nodes": nodes, "gpus_per_node": gpus_per_node, "order": tuple(order), **degrees, **fields})
    check_layout(plan)
    return plan


def stages(layers: int, count: int, sizes: Sequence[int] | None = None) -> tuple[tuple[int, ...], ...]:
    """Layer numbers of each of `count` stages: contiguous, of the given sizes, else even. Raises PlacementError.

    >>> stages(4, 2), stages(4, 2, (3, 1))
    (((0, 1), (2, 3)), ((0, 1, 2), (3,)))
    """
    if sizes is None:
        if layers % count:
            raise PlacementError(f"parallel.pp = {count} does not cut {layers} layers into even stages: use {_either(_divisors(layers))}")
        sizes = [layers // count] * count
    ends = list(accumulate(sizes))
    return tuple(tuple(range(end - size, end)) for size, end in zip(sizes, ends, strict=True))


def domain_ranks(plan: Plan) -> int:
    """Number of consecutive world ranks that the site promises to be in one NVLink domain."""
    return {"node": plan.gpus_per_node, "block": plan.block_nodes * plan.gpus_per_node, "pairs": 2}[plan.nvlink_domain]


def promised_domain(plan: Plan, rank: int) -> tuple[int, int]:
    """Which NVLink domain a rank is in, as the site promises: (node or block, pair), counted from 0."""
    node, local_rank = divmod(rank, plan.gpus_per_node)
    if plan.nvlink_domain == "block":
        return node // plan.block_nodes, 0
    return node, local_rank // 2 if plan.nvlink_domain == "pairs" else 0


def domain_words(plan: Plan) -> str:
    """The site's promise in words."""
    if plan.nvlink_domain == "block":
        return f"blocks of {plan.block_nodes} nodes x {plan.gpus_per_node} GPUs"
    return "pairs of GPUs" if plan.nvlink_domain == "pairs" else f"nodes of {plan.gpus_per_node} GPUs"


def check_layout(plan: Plan) -> None:
    """Raises PlacementError, with the numbers, for a layout that cannot be placed on such nodes."""
    if sorted(plan.order) != sorted(AXES):
        raise PlacementError(f"parallel.order = {list(plan.order)}: must name each of {', '.join(AXES)} once")
    product = plan.tp * plan.cp * plan.dp * plan.pp
    if plan.world != product or plan.world != plan.nodes * plan.gpus_per_node:
        raise PlacementError(
            f"the layout has tp {plan.tp} x cp {plan.cp} x dp {plan.dp} x pp {plan.pp} = {product} ranks, "
            f"{plan.nodes} nodes x {plan.gpus_per_node} GPUs = {plan.nodes * plan.gpus_per_node}: change parallel or slurm.nodes"
        )
    if plan.dp % plan.ep:
        raise PlacementError(f"parallel.ep = {plan.ep} must divide dp = {plan.dp}: use {_either(_divisors(plan.dp))}")
    _check_tp(plan)


def _check_tp(plan: Plan) -> None:
    """A tensor-parallel group must not leave its NVLink domain."""
    for group in groups(plan, "tp"):
        if len({promised_domain(plan, rank) for rank in group}) > 1:
            break
    else:
        return
    size = domain_ranks(plan)
    if plan.tp <= size and size % plan.tp == 0:
        raise PlacementError(
            f"parallel.order = {list(plan.order)} puts a TP group on ranks {group}, which leaves its NVLink domain "
            f"({domain_words(plan)}): put tp first"
        )
    raise PlacementError(
        f"parallel.tp = {plan.tp} does not fit NVLink domains of {size} GPUs (the site has {domain_words(plan)}): "
        f"use {_either(_divisors(size))}"
    )


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _either(values: Sequence[int]) -> str:
    """1, 2, 4 or 8."""
    words = [str(v) for v in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
