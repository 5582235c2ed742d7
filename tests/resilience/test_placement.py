"""Choice of nodes and what the allocation must be."""

from __future__ import annotations

import pytest

from slurmtrain.errors import LaunchError, PlacementError
from slurmtrain.fabric.plan import build_plan
from slurmtrain.resilience.placement import check_grant, choose, expected_memory
from slurmtrain.slurm.types import JobInfo, NodePlace
from tests.resilience.runs import job_of, site_of

SITE = site_of("srun", 4, node={"gpus": 4, "cpus_per_gpu": 6, "memory_bytes": 100 << 30})


def plan(nodes: int, spares: int = 0):
    return build_plan(job_of("run", nodes=nodes, gpus=4, steps=1, spares=spares), SITE)


def test_natural_order_and_the_rest_are_spares():
    chosen = choose(plan(2, 1), ["n10", "n2", "n1"], [], {})
    assert (chosen.nodes, chosen.spares, chosen.avoided_in_vain) == (("n1", "n2"), ("n10",), ())


def test_neighbours_of_one_leaf_are_taken_together():
    places = [NodePlace("n1", "s1"), NodePlace("n2", "s2"), NodePlace("n3", "s2")]
    assert choose(plan(2, 1), ["n1", "n2", "n3"], places, {}).nodes == ("n2", "n3")


def test_excluded_nodes_only_where_there_are_not_enough_others():
    assert choose(plan(2, 1), ["n1", "n2", "n3"], [], {"n1": "bad"}).nodes == ("n2", "n3")
    needed = choose(plan(2, 0), ["n1", "n2"], [], {"n1": "bad"})
    assert (needed.nodes, needed.avoided_in_vain) == (("n1", "n2"), ("n1",))


def test_too_few_nodes_are_an_error_with_both_numbers():
    with pytest.raises(PlacementError, match="3 nodes, 2"):
        choose(plan(3), ["n1", "n2"], [], {})


def job(cpus: int | None, memory: int | None) -> JobInfo:
    return JobInfo("12", "run", "RUNNING", cpus_per_node=cpus, memory_per_node_bytes=memory)


def test_enough_or_unknown_is_no_fault():
    for found in (job(24, 96 << 30), job(64, None), job(None, None), None):
        check_grant(found, plan(2), SITE)


@pytest.mark.parametrize(
    ("found", "words"),
    [(job(23, None), "23 CPUs per node, the world needs 24"), (job(24, 70 << 30), "70.0 GiB of memory per node.*100.0 GiB")],
)
def test_less_than_asked_is_an_error_with_the_numbers(found, words):
    with pytest.raises(LaunchError, match=words):
        check_grant(found, plan(2), SITE)


def test_a_part_of_a_node_needs_its_share_of_memory():
    half = build_plan(job_of("run", nodes=2, gpus=2, steps=1), SITE)
    assert expected_memory(half, SITE) == (40 << 30)
    assert expected_memory(half, site_of("srun", 4)) == 0
    check_grant(job(12, 50 << 30), half, SITE)
    with pytest.raises(LaunchError, match=r"30\.0 GiB .*2 of 4 ranks' share of a node is 50\.0 GiB"):
        check_grant(job(12, 30 << 30), half, SITE)
