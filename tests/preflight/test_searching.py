"""The search for what makes a collective fail: whatever is bad is named exactly, within the bound, and no good node ever is."""

from __future__ import annotations

from itertools import combinations
from math import ceil, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmtrain.preflight.searching import Found, Heard, search


def run(count: int, bad=(), pairs=(), gone=(), after: int = 0) -> tuple[Found, list[list[tuple[str, ...]]]]:
    """A search over nodes n0 ... of which these are bad: by the definition of a bad group, and nothing else.

    `gone`: hang from the round after `after` others on.
    """
    bad, pairs, left = set(bad), [set(pair) for pair in pairs], set(gone)
    machine, history = search([f"n{i}" for i in range(count)]), []
    try:
        groups = next(machine)
        while True:
            history.append(groups)
            inside = [node for group in groups for node in group]
            assert len(inside) == len(set(inside)), "groups of a round are disjoint"
            assert all(len(group) > 1 for group in groups), "a node is never tested alone"
            assert not set(inside) & (set(gone) - left), "who is gone is tested no more"
            lost = left & set(inside) if len(history) > after else set()
            left -= lost
            passed = tuple(not (set(g) & (bad | lost)) and not any(p <= set(g) for p in pairs) for g in groups)
            groups = machine.send(Heard(passed, frozenset(lost)))
    except StopIteration as end:
        return end.value, history


def bound(count: int, faults: int) -> int:
    return max(1, faults) * (ceil(log2(count)) + 1)


@pytest.mark.parametrize("count", [4, 5, 6, 7, 8, 13, 16, 64, 200])
def test_one_bad_node_of_n_is_named_in_log2_n_plus_1_rounds(count):
    for culprit in range(0, count, max(1, count // 5)):
        found, history = run(count, bad=[f"n{culprit}"])
        assert (found.bad, found.pairs, found.suspected, found.undecided) == ((f"n{culprit}",), (), (), ())
        assert found.rounds == len(history) <= log2(count) + 1 or count & (count - 1)
        assert found.rounds <= ceil(log2(count)) + 1


def test_all_are_good_in_one_round():
    found, history = run(9)
    assert found == Found((), (), (), (), (), (), 1)
    assert history == [[tuple(f"n{i}" for i in range(9))]]
    assert run(1)[0].rounds == run(0)[0].rounds == 0


def test_of_two_nobody_can_tell_and_of_three_it_takes_four_rounds():
    found, _ = run(2, bad=["n1"])
    assert (found.bad, found.pairs, found.undecided, found.rounds) == ((), (("n0", "n1"),), ("n0", "n1"), 1)
    for culprit in ("n0", "n1", "n2"):
        found, _ = run(3, bad=[culprit])
        assert (found.bad, found.rounds <= 4) == ((culprit,), True)


def test_a_pair_across_two_good_halves_is_handed_to_the_tournament():
    found, history = run(8, pairs=[("n1", "n6")])
    assert (found.bad, found.pairs, found.rounds) == ((), (), 2)
    assert set(found.suspected) == {(f"n{a}", f"n{b}") for a in range(4) for b in range(4, 8)}
    assert history[1] == [("n0", "n1", "n2", "n3"), ("n4", "n5", "n6", "n7")]


def test_a_pair_that_was_tested_alone_is_named():
    found, _ = run(4, pairs=[("n0", "n1")])
    assert (found.bad, found.pairs, found.suspected) == ((), (("n0", "n1"),), ())


def test_nodes_that_hang_are_out_at_once_and_the_others_are_proved_without_them():
    found, history = run(8, gone=["n2", "n5"])
    assert (found.gone, found.bad, found.rounds) == (("n2", "n5"), (), 2)
    assert history[1] == [("n0", "n1", "n3", "n4", "n6", "n7")]


def test_where_nothing_passes_nobody_is_named():
    found, _ = run(4, bad=["n0", "n1", "n2"])
    assert (found.bad, found.undecided) == ((), ("n0", "n1", "n2", "n3"))
    assert set(found.pairs) == set(combinations(found.undecided, 2))


@st.composite
def troubles(draw):
    """Bad nodes, and bad pairs of which no good node has two: of a node with many, nobody could say that it is good."""
    count = draw(st.integers(4, 24))
    nodes = draw(st.permutations([f"n{i}" for i in range(count)]))
    bad = nodes[: draw(st.integers(0, count - 3))]
    good = nodes[len(bad) :]
    couples = draw(st.integers(0, len(good) // 2))
    return count, set(bad), {frozenset(good[2 * i : 2 * i + 2]) for i in range(couples)}


@settings(max_examples=100, deadline=None)
@given(troubles())
def test_whatever_is_bad_is_named_within_the_bound_and_nothing_else(trouble):
    count, bad, pairs = trouble
    found, history = run(count, bad, pairs)
    assert set(found.bad) == bad
    assert found.undecided == ()
    named = {frozenset(pair) for pair in found.pairs}
    handed = {frozenset(pair) for pair in (*found.suspected, *found.unproven)}
    assert named <= pairs, "a pair that is named is bad"
    assert pairs <= named | handed, "a pair that is not named is left to the tournament"
    assert len(history) == found.rounds <= bound(count, len(bad) + len(pairs))


@settings(max_examples=50, deadline=None)
@given(troubles(), st.sets(st.integers(0, 23), max_size=3), st.integers(0, 4))
def test_nodes_that_hang_change_nothing_for_the_others(trouble, hung, after):
    count, bad, pairs = trouble
    gone = {f"n{i}" for i in hung if i < count} - bad - {node for pair in pairs for node in pair}
    found, _ = run(count, bad, pairs, gone, after)
    assert set(found.gone) <= gone
    assert after or set(found.gone) == gone
    assert set(found.bad) <= bad, "good nodes are never named"
    rest = count - len(gone) - len(bad)
    if rest >= 3:
        assert set(found.bad) == bad


def test_a_good_partner_that_hangs_is_no_partner_any_more():
    found, history = run(8, bad=["n0"], gone=["n4"], after=2)
    assert history[2][0] == ("n0", "n4")
    assert (found.bad, found.gone, found.undecided) == (("n0",), ("n4",), ())
