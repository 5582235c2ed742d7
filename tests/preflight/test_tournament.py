"""The tournament of pairs: each once, in disjoint rounds; who is left out for bad pairs."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmtrain.preflight.tournament import bad_nodes, left_out, rounds, schedule


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 7, 8, 17, 64])
def test_every_pair_once_in_n_minus_1_rounds_of_n_half_pairs(count):
    nodes = [f"n{i}" for i in range(count)]
    played = list(rounds(nodes))
    assert len(played) == (count - 1 if count % 2 == 0 else count)
    assert all(len(one) == count // 2 and len({node for pair in one for node in pair}) == 2 * len(one) for one in played)
    assert sorted(pair for one in played for pair in one) == sorted(combinations(sorted(nodes, key=nodes.index), 2), key=lambda p: p)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 20), st.data())
def test_pairs_of_interest_come_first_and_no_pair_twice(count, data):
    nodes = list(range(count))
    every = list(combinations(nodes, 2))
    first = data.draw(st.lists(st.sampled_from(every), unique=True))
    plan = schedule(nodes, first)
    flat = [pair for one in plan for pair in one]
    assert sorted(flat) == every
    assert set(flat[: len(first)]) == set(first)
    assert all(len({node for pair in one for node in pair}) == 2 * len(one) for one in plan)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 12), st.data())
def test_nobody_is_left_with_a_bad_pair_and_no_more_are_out_than_bad_pairs(count, data):
    nodes = list(range(count))
    pairs = data.draw(st.lists(st.sampled_from(list(combinations(nodes, 2))), unique=True))
    out = left_out(pairs, nodes)
    assert all(set(pair) & set(out) for pair in pairs)
    assert len(out) <= len(pairs)


def test_of_one_bad_pair_the_later_is_out_and_of_several_the_common_node():
    assert left_out([("n2", "n9")], ["n1", "n9", "n2"]) == {"n2": ("n9",)}
    assert left_out([("n1", "n2"), ("n1", "n3")], ["n1", "n2", "n3"]) == {"n1": ("n2", "n3")}


def test_a_node_is_bad_where_all_its_pairs_are_and_they_are_several():
    tested = list(combinations("abcd", 2))
    assert bad_nodes(tested, [("a", "b"), ("a", "c"), ("a", "d")]) == ["a"]
    assert bad_nodes(tested, [("a", "b"), ("a", "c")]) == []
    assert bad_nodes([("a", "b")], [("a", "b")]) == []
