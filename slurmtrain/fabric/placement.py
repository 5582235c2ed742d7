"""Where ranks go: pure maps between world ranks, (node, local rank) and coordinates on the mesh axes.

World rank r is a mixed-radix number whose digits are the coordinates, the fastest axis of `plan.order` being the lowest digit.
Axis "dp" is what ep leaves of data parallelism (plan.dp / plan.ep), as in `Plan.sizes`.

>>> from slurmtrain.fabric.layout import layout
>>> plan = layout(nodes=2, gpus_per_node=4, tp=2, dp=2, pp=2)
>>> coordinates(plan, 5), rank_of(plan, {"tp": 1, "cp": 0, "ep": 0, "dp": 0, "pp": 1})
({'tp': 1, 'cp': 0, 'ep': 0, 'dp': 0, 'pp': 1}, 5)
>>> groups(plan, "tp"), groups(plan, "dp", "tp")
([[0, 1], [2, 3], [4, 5], [6, 7]], [[0, 1, 2, 3], [4, 5, 6, 7]])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurmtrain.config.plan import Plan
from slurmtrain.errors import LaunchError


def coordinates(plan: Plan, rank: int) -> dict[str, int]:
    """Index of a world rank on each axis, in the order of the plan (fastest first)."""
    assert 0 <= rank < plan.world, f"rank {rank} of a world of {plan.world}"
    found, rest = {}, rank
    for axis, size in plan.sizes().items():
        rest, found[axis] = divmod(rest, size)
    return found


def rank_of(plan: Plan, coords: Mapping[str, int]) -> int:
    """World rank at these coordinates; every axis must be named."""
    rank, stride = 0, 1
    for axis, size in plan.sizes().items():
        assert 0 <= coords[axis] < size, f"{axis} = {coords[axis]} of {size}"
        rank += coords[axis] * stride
        stride *= size
    return rank


def groups(plan: Plan, *axes: str) -> list[list[int]]:
    """All groups of ranks that differ along `axes` alone: ranks of a group ascending, groups by their first rank.

    One axis gives its groups; several give their flattened product (`groups(plan, "dp", "ep", "cp")`).
    """
    fixed: dict[tuple[int, ...], list[int]] = {}
    for rank in range(plan.world):
        key = tuple(index for axis, index in coordinates(plan, rank).items() if axis not in axes)
        fixed.setdefault(key, []).append(rank)
    return sorted(fixed.values())


def shard_groups(plan: Plan) -> list[list[int]]:
    """Ranks that share one copy of what `plan.dp_mode` shards: `plan.shard` neighbours along the data-parallel axes, times cp.

    With nothing to shard each rank is alone.

    >>> from slurmtrain.fabric.layout import layout
    >>> shard_groups(layout(nodes=1, gpus_per_node=8, dp=4, cp=2, dp_mode="fsdp", dp_shard=2))
    [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    if plan.dp_mode == "ddp":
        return [[rank] for rank in range(plan.world)]
    found: dict[tuple[int, int], list[int]] = {}
    place = {rank: index for group in groups(plan, "dp", "ep") for index, rank in enumerate(group)}
    for number, members in enumerate(groups(plan, "dp", "ep", "cp")):
        for rank in members:
            found.setdefault((number, place[rank] // plan.shard), []).append(rank)
    return sorted(found.values())


def replicate_groups(plan: Plan) -> list[list[int]]:
    """Ranks that hold the same shard: one of each shard group of the same parameters."""
    found: dict[tuple[int, int], list[int]] = {}
    index = {rank: i for group in shard_groups(plan) for i, rank in enumerate(group)}
    for number, members in enumerate(groups(plan, "dp", "ep", "cp")):
        for rank in members:
            found.setdefault((number, index[rank]), []).append(rank)
    return sorted(found.values())


def end_groups(plan: Plan) -> list[list[int]]:
    """The pipeline ranks of the first and of the last stage (one rank where both are its own), for each place on the other axes;
    a rank with neither is alone.
    """
    ends = {plan.pp_index_of(0), plan.pp_index_of(len(plan.stages) - 1)}
    found: list[list[int]] = []
    for line in groups(plan, "pp"):
        found.append([rank for index, rank in enumerate(line) if index in ends])
        found += [[rank] for index, rank in enumerate(line) if index not in ends]
    return sorted(found)


def world_rank(nodes: Sequence[str], tasks_per_node: int, node: str, local_rank: int) -> int:
    """World rank of a task: index of its node x tasks per node + its local rank.

    Raises LaunchError for a node that is not in the world or a local rank that it does not have.
    """
    if node not in nodes:
        raise LaunchError(f"a rank runs on node {node}, which is not in the world of this attempt ({', '.join(nodes)})")
    if not 0 <= local_rank < tasks_per_node:
        raise LaunchError(f"node {node} has a local rank {local_rank}; {tasks_per_node} ranks per node are 0 to {tasks_per_node - 1}")
    return list(nodes).index(node) * tasks_per_node + local_rank
