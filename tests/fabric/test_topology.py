"""Order and choice of nodes; the promise of the site against what ranks found (recorded answers)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.errors import PlacementError
from slurmtrain.fabric.discovery import DomainAnswer
from slurmtrain.fabric.layout import layout
from slurmtrain.fabric.topology import check_domains, choose_nodes, domain_of, order_nodes, segment_nodes
from slurmtrain.slurm.types import NodePlace

TREE = [NodePlace("n1", leaf="s10"), NodePlace("n2", leaf="s2"), NodePlace("n10", leaf="s2"), NodePlace("n3", leaf="s10")]


def blocks(**names: str) -> list[NodePlace]:
    """blocks(b1="n1 n2", b2="n3")."""
    return [NodePlace(node, block=block) for block, nodes in names.items() for node in nodes.split()]


def answers(tasks: int, **found: str) -> list[DomainAnswer]:
    """World in the order given: answers(4, n1="b1", n2="b2"); a value with ':' is NVML's fabric."""
    made = []
    for node, word in found.items():
        where = {"fabric": word} if ":" in word else {"block": word}
        made += [DomainAnswer(node, local, "host", **where) for local in range(tasks)]
    return made


def test_nodes_are_ordered_by_leaf_then_naturally():
    assert order_nodes(["n10", "n3", "n1", "n2", "zz"], TREE) == ["n2", "n10", "n1", "n3", "zz"]
    assert order_nodes(["n10", "n9", "n1"], []) == ["n1", "n9", "n10"]
    assert order_nodes(["gpu-b-2", "gpu-a-10", "gpu-a-9"], []) == ["gpu-a-9", "gpu-a-10", "gpu-b-2"]


@pytest.mark.parametrize(
    ("places", "count", "segment", "chosen"),
    [
        ([], 2, 1, "n1 n2"),
        (blocks(b1="n1", b2="n2 n3", b3="n4"), 2, 2, "n2 n3"),
        # Two whole blocks of a TP group's two nodes each, though b1 alone has three.
        (blocks(b1="n1 n2 n3", b2="n4 n5"), 4, 2, "n1 n2 n4 n5"),
        # A leaf of three is kept together before another is begun.
        ([NodePlace("n1", leaf="a"), *(NodePlace(f"n{i}", leaf="b") for i in (2, 3, 4))], 3, 1, "n2 n3 n4"),
        # A single node fills up and comes last, so that the segments before it stay whole.
        (blocks(b1="n1", b2="n2 n3"), 3, 2, "n2 n3 n1"),
    ],
)
def test_whole_blocks_are_chosen_first(places, count, segment, chosen):
    nodes = [p.node for p in places] or ["n3", "n2", "n1"]
    assert choose_nodes(nodes, count, places, segment=segment) == chosen.split()


def test_too_few_nodes_are_counted():
    with pytest.raises(PlacementError, match=r"needs 3 nodes, 2 are there \(n1, n2\)"):
        choose_nodes(["n2", "n1"], 3, [])


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(1, 3), st.data())
def test_chosen_segments_are_whole_wherever_blocks_allow(block_of_node, segment, data):
    places = [NodePlace(f"n{i}", block=f"b{block}") for i, block in enumerate(block_of_node)]
    count = data.draw(st.integers(1, len(places)))
    chosen = choose_nodes([p.node for p in places], count, places, segment=segment)
    assert len(set(chosen)) == count
    block = {p.node: p.block for p in places}
    sizes = [block_of_node.count(b) for b in set(block_of_node)]
    possible = min(sum(s // segment for s in sizes), count // segment)
    runs = [{block[n] for n in chosen[i : i + segment]} for i in range(0, count - segment + 1, segment)]
    assert sum(len(r) == 1 for r in runs) >= possible


def test_a_segment_is_what_a_tp_group_spans():
    two = layout(nodes=4, gpus_per_node=4, tp=8, dp=2, nvlink_domain="block", block_nodes=4)
    assert (segment_nodes(two), segment_nodes(layout(nodes=4, gpus_per_node=4, tp=4, dp=4))) == (2, 1)


TP8 = {"nodes": 2, "gpus_per_node": 4, "tp": 8, "nvlink_domain": "block", "block_nodes": 2}
TWICE = {**TP8, "nodes": 4, "dp": 2}


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        (TP8, answers(4, n1="b1", n2="b1")),
        (TP8, answers(4, n1="uuid:1", n2="uuid:1")),  # NVML's word counts, whatever Slurm calls the block
        (TWICE, answers(4, n1="b1", n2="b1", n5="b3", n6="b3")),
        ({"nodes": 2, "gpus_per_node": 4, "tp": 4, "dp": 2}, answers(4, n1="b1", n2="b2")),
        ({"nodes": 2, "gpus_per_node": 4, "tp": 4, "dp": 2}, answers(4, n1="", n2="")),
        ({"nodes": 1, "gpus_per_node": 4, "tp": 2, "dp": 2, "nvlink_domain": "pairs"}, answers(4, n1="")),
    ],
)
def test_tp_groups_inside_their_domains_are_accepted(fields, found):
    check_domains(layout(**fields), found)


@pytest.mark.parametrize(
    ("fields", "found", "words"),
    [
        (TP8, answers(4, n1="b1", n3="b2"), "block b1: ranks 0-3 on n1; block b2: ranks 4-7 on n3"),
        (TP8, answers(4, n1="", n2=""), "node n1: ranks 0-3 on n1; node n2: ranks 4-7 on n2"),
        (TP8, answers(4, n1="u:1", n2="u:2"), "fabric u:1: ranks 0-3 on n1; fabric u:2"),
        (
            {**TP8, "nodes": 4, "dp": 2},
            answers(4, n1="b1", n2="b1", n3="b2", n5="b3"),
            "block b2: ranks 8-11 on n3; block b3: ranks 12-15 on n5",
        ),
        (TWICE, answers(4, n1="b1", n3="b2", n5="b3", n7="b4"), "and 1 more groups"),
    ],
)
def test_a_tp_group_outside_one_domain_is_refused_with_names(fields, found, words):
    with pytest.raises(PlacementError) as refused:
        check_domains(layout(**fields), found)
    assert words in str(refused.value)


def test_a_node_whose_gpus_are_in_two_cliques_is_refused():
    half = [DomainAnswer("n1", i, "host", fabric=f"u.{i // 2}") for i in range(4)]
    with pytest.raises(PlacementError, match="ranks 0-1 on n1"):
        check_domains(layout(nodes=1, gpus_per_node=4, tp=4), half)


def test_pairs_are_counted_within_the_node():
    plan = layout(nodes=1, gpus_per_node=4, tp=2, dp=2, nvlink_domain="pairs")
    keys = [domain_of(plan, "n1", i, DomainAnswer("n1", i, fabric="u.1")) for i in range(4)]
    assert keys == ["n1, pair 0", "n1, pair 0", "n1, pair 1", "n1, pair 1"]
