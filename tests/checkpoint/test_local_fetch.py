"""Who brings which file to which node: everybody gets what it needs, from one that has it by then, one at a time for each rank."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.checkpoint.local_fetch import plan_transfers


@st.composite
def situations(draw):
    nodes, files = draw(st.integers(1, 6)), [f"f{i}" for i in range(draw(st.integers(0, 6)))]
    holders = {name: tuple(draw(st.sets(st.integers(0, nodes - 1), min_size=1))) for name in files}
    needed = [draw(st.sets(st.sampled_from(files))) if files else set() for _ in range(nodes)]
    return needed, holders, draw(st.integers(1, 3))


@given(situations())
def test_each_node_gets_what_it_lacks_and_no_more(situation):
    needed, holders, lanes = situation
    have = {name: set(nodes) for name, nodes in holders.items()}
    carried = []
    for some in plan_transfers(needed, holders, lanes):
        assert some
        senders, receivers = [(one.source, one.lane) for one in some], [(one.target, one.lane) for one in some]
        assert len(set(senders)) == len(senders), "a rank sends one file at a time"
        assert len(set(receivers)) == len(receivers), "and receives one"
        assert all(one.source in have[one.file] and one.source != one.target and one.lane < lanes for one in some)
        for one in some:
            have[one.file].add(one.target)
        carried += [(one.target, one.file) for one in some]
    lacking = [(node, name) for node, names in enumerate(needed) for name in names if node not in holders[name]]
    assert sorted(carried) == sorted(lacking)


@pytest.mark.parametrize("nodes, rounds", [(2, 1), (3, 2), (8, 3), (100, 7), (1000, 10)])
def test_what_all_want_doubles_from_round_to_round(nodes, rounds):
    assert len(plan_transfers([{"a"}] * nodes, {"a": (0,)}, 1)) == rounds


def test_the_ranks_of_a_node_share_its_files():
    names = [f"f{i}" for i in range(8)]
    plan = plan_transfers([set(), set(names)], dict.fromkeys(names, (0,)), 4)
    assert [len(some) for some in plan] == [4, 4]
