"""A wrong map here puts a TP group across nodes, or two ranks on the same shard: every map is a bijection and every axis a partition."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.config.parallel import AXES
from slurmtrain.config.plan import Plan
from slurmtrain.errors import LaunchError
from slurmtrain.fabric.placement import coordinates, groups, rank_of, world_rank

DEGREE = st.sampled_from([1, 2, 3, 4])


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any shape in any order: placement must be right also where `check_layout` would refuse."""
    tp, cp, ep, rest, pp = (draw(DEGREE) for _ in range(5))
    world = tp * cp * ep * rest * pp
    return Plan(
        world=world,
        nodes=1,
        spares=0,
        gpus_per_node=world,
        tp=tp,
        cp=cp,
        ep=ep,
        dp=ep * rest,
        pp=pp,
        order=tuple(draw(st.permutations(AXES))),
        nvlink_domain="node",
        block_nodes=1,
        stages=((0,),) * pp,
        global_batch=1,
        micro_batch=1,
        microbatches=1,
        dp_mode="ddp",
    )


@given(plans())
def test_coordinates_are_a_bijection(plan):
    seen = set()
    for rank in range(plan.world):
        at = coordinates(plan, rank)
        assert rank_of(plan, at) == rank
        seen.add(tuple(sorted(at.items())))
    assert len(seen) == plan.world


@given(plans())
def test_coordinates_are_those_of_numpys_mixed_radix(plan):
    shape = tuple(plan.sizes().values())
    expected = np.stack(np.unravel_index(np.arange(plan.world), shape, order="F"), axis=1)
    found = [[coordinates(plan, r)[axis] for axis in plan.order] for r in range(plan.world)]
    assert found == expected.tolist()


@given(plans(), st.sets(st.sampled_from(AXES), min_size=1))
def test_groups_partition_the_world_and_differ_on_their_axes_alone(plan, axes):
    found = groups(plan, *axes)
    assert sorted(itertools.chain.from_iterable(found)) == list(range(plan.world))
    size = np.prod([plan.sizes()[axis] for axis in axes])
    for group in found:
        assert len(group) == size
        assert group == sorted(group)
        others = {tuple(i for axis, i in coordinates(plan, r).items() if axis not in axes) for r in group}
        assert len(others) == 1


@pytest.mark.parametrize(("node", "local", "rank"), [("n2", 0, 0), ("n2", 3, 3), ("n1", 1, 5), ("n7", 3, 11)])
def test_world_rank_follows_the_order_of_nodes_not_their_names(node, local, rank):
    assert world_rank(["n2", "n1", "n7"], 4, node, local) == rank


@pytest.mark.parametrize(("node", "local", "words"), [("n9", 0, "n9"), ("n1", 4, "local rank 4"), ("n1", -1, "local rank -1")])
def test_a_place_outside_the_world_is_a_launch_error(node, local, words):
    with pytest.raises(LaunchError, match=words):
        world_rank(["n1", "n2"], 4, node, local)
