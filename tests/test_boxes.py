"""Boxes against numpy: a box is the set of elements that a mask of the whole tensor shows."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.boxes import Box, Part, contains, intersect, tiling_fault, whole

EXTENT = 5


def mask(box: Box, shape: tuple[int, ...]) -> np.ndarray:
    found = np.zeros(shape, dtype=bool)
    found[tuple(slice(a, b) for a, b in zip(box.offset, box.stop, strict=True))] = True
    return found


@st.composite
def boxes(draw, dims: int) -> Box:
    offset = [draw(st.integers(0, EXTENT)) for _ in range(dims)]
    return Box(tuple(offset), tuple(draw(st.integers(0, EXTENT - o)) for o in offset))


@st.composite
def tilings(draw) -> tuple[tuple[int, ...], list[Box]]:
    """A shape and its cut along each dim, as a layout of tp and fsdp cuts a tensor."""
    shape = tuple(draw(st.lists(st.integers(1, EXTENT), max_size=3)))
    cuts = [sorted({0, n, *draw(st.lists(st.integers(0, n), max_size=2))}) for n in shape]
    grid = [list(itertools.pairwise(edges)) for edges in cuts]
    found = [((), ())]
    for spans in grid:
        found = [((*o, a), (*s, b - a)) for o, s in found for a, b in spans]
    return shape, draw(st.permutations([Box(o, s) for o, s in found]))


PAIRS = st.integers(0, 3).flatmap(lambda dims: st.tuples(boxes(dims), boxes(dims)))


@given(PAIRS)
def test_the_intersection_is_that_of_the_elements(pair):
    a, b = pair
    shape = (EXTENT,) * len(a.shape)
    both = mask(a, shape) & mask(b, shape)
    found = intersect(a, b)
    assert found == intersect(b, a)
    if found is None:
        assert not both.any()
    else:
        assert found.volume > 0
        assert (mask(found, shape) == both).all()


@given(PAIRS)
def test_a_box_that_is_held_has_no_element_outside(pair):
    outer, inner = pair
    shape = (EXTENT,) * len(outer.shape)
    if contains(outer, inner):
        assert not (mask(inner, shape) & ~mask(outer, shape)).any()
    elif inner.volume:
        assert (mask(inner, shape) & ~mask(outer, shape)).any()


@given(PAIRS)
def test_coordinates_within_the_outer_box_show_the_same_elements(pair):
    outer, other = pair
    inner = intersect(outer, other)
    if inner is None:
        return
    numbers = np.arange(EXTENT ** len(outer.shape)).reshape((EXTENT,) * len(outer.shape))

    def cut(box: Box) -> np.ndarray:
        return numbers[tuple(slice(a, b) for a, b in zip(box.offset, box.stop, strict=True))]

    assert (cut(outer)[tuple(slice(a, b) for a, b in inner.within(outer))] == cut(inner)).all()


@given(boxes(2))
def test_volume_counts_the_elements(box):
    assert box.volume == mask(box, (EXTENT, EXTENT)).sum()


def test_a_scalar_is_one_element():
    scalar = whole(())
    assert scalar.volume == 1
    assert intersect(scalar, scalar) == scalar
    assert tiling_fault((), [scalar]) is None
    assert "overlap" in (tiling_fault((), [scalar, scalar]) or "")
    assert tiling_fault((), []) == "1 of 1 elements are in no box"


@given(tilings())
def test_a_cut_tensor_is_tiled_in_any_order_and_with_empty_boxes_beside(case):
    shape, pieces = case
    assert tiling_fault(shape, pieces) is None
    assert tiling_fault(shape, [*pieces, Box(shape, (0,) * len(shape))] if shape else pieces) is None


@given(tilings(), st.data())
def test_a_piece_that_is_missing_or_twice_there_is_a_fault(case, data):
    shape, pieces = case
    index = data.draw(st.integers(0, len(pieces) - 1))
    assert "are in no box" in (tiling_fault(shape, pieces[:index] + pieces[index + 1 :]) or "")
    assert "overlap" in (tiling_fault(shape, [*pieces, pieces[index]]) or "")


@given(st.lists(boxes(2), max_size=5))
def test_the_verdict_is_that_of_counting_every_element(pieces):
    shape = (EXTENT, EXTENT)
    counts = sum((mask(box, shape).astype(int) for box in pieces), np.zeros(shape, int))
    assert (tiling_fault(shape, pieces) is None) == bool((counts == 1).all())


PINWHEEL = [Box((0, 0), (1, 2)), Box((0, 2), (2, 1)), Box((2, 1), (1, 2)), Box((1, 0), (2, 1)), Box((1, 1), (1, 1))]
"""No straight line cuts these five."""


@given(tilings(), st.data())
def test_a_piece_that_has_moved_or_grown_is_a_fault_though_the_count_may_be_right(case, data):
    shape, pieces = case
    index, dim = data.draw(st.integers(0, len(pieces) - 1)), data.draw(st.integers(0, max(len(shape) - 1, 0)))
    by, wider = data.draw(st.sampled_from([-2, -1, 1, 2])), data.draw(st.integers(0, 1))
    if not shape:
        return
    one = pieces[index]
    start, extent = one.offset[dim] + by, one.shape[dim] + wider
    if start < 0 or start + extent > shape[dim]:
        return
    moved = Box((*one.offset[:dim], start, *one.offset[dim + 1 :]), (*one.shape[:dim], extent, *one.shape[dim + 1 :]))
    others = [*pieces[:index], moved, *pieces[index + 1 :]]
    counts = sum((mask(box, shape).astype(int) for box in others), np.zeros(shape, int))
    assert not (counts == 1).all()
    assert (tiling_fault(shape, others) or "").split()[-1] == ("overlap" if (counts > 1).any() else "box")


def test_five_boxes_round_a_middle():
    assert tiling_fault((3, 3), PINWHEEL) is None
    assert tiling_fault((3, 3), PINWHEEL[:4]) == "1 of 9 elements are in no box"
    assert "overlap" in (tiling_fault((3, 3), [*PINWHEEL[:4], Box((0, 0), (1, 1))]) or "")


@pytest.mark.parametrize("across", [0, 1])
def test_no_pair_is_compared_to_accept_the_boxes_of_a_thousand_ranks_and_few_to_find_one_too_many(across, monkeypatch):
    count, width = 1000, 3
    shape = (count * width, 7)[:: 1 if across == 0 else -1]
    pieces = [Box((i * width, 0)[:: 1 if across == 0 else -1], (width, 7)[:: 1 if across == 0 else -1]) for i in range(count)]
    compared = []
    monkeypatch.setattr("slurmtrain.boxes.intersect", lambda a, b: (compared.append(a), intersect(a, b))[1])
    assert (tiling_fault(shape, pieces), len(compared)) == (None, 0)
    assert tiling_fault(shape, pieces[:-1]) == f"{7 * width} of {7 * width * count} elements are in no box"
    assert len(compared) == 0
    assert "overlap" in (tiling_fault(shape, [*pieces, pieces[-1]]) or "")
    assert len(compared) <= count


def test_a_box_outside_the_tensor_is_named():
    assert tiling_fault((4,), [Box((0,), (5,))]) == "box at (0,) of shape (5,) lies outside a tensor of shape (4,)"
    assert "outside" in (tiling_fault((4,), [Box((0, 0), (2, 2))]) or "")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Box((0,), (1, 2)),
        lambda: Box((-1,), (1,)),
        lambda: Part("w", (4,), Box((2,), (3,)), ((0, 3),)),
        lambda: Part("w", (4,), Box((0,), (2,)), ((0, 3),)),
        lambda: Box((1,), (1,)).within(Box((0,), (1,))),
        lambda: intersect(Box((0,), (1,)), Box((0, 0), (1, 1))),
    ],
)
def test_a_programmers_mistake_is_an_assertion(wrong):
    with pytest.raises(AssertionError):
        wrong()
