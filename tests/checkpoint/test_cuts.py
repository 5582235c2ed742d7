"""Boxes and files of a checkpoint that one process writes."""

from __future__ import annotations

import doctest
import random

import pytest

from slurmtrain.boxes import Box, tiling_fault, whole
from slurmtrain.checkpoint import cuts, dcp_names
from slurmtrain.checkpoint.cuts import Sizing, runs_of_rows
from slurmtrain.checkpoint.dcp_names import from_dcp, path_of, to_dcp


@pytest.mark.parametrize("module", [cuts, dcp_names], ids=lambda module: module.__name__)
def test_examples_in_docstrings_hold(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_runs_of_rows_tile_fit_and_are_alike():
    draw = random.Random(1)
    for _ in range(500):
        shape = tuple(draw.randint(1, 9) for _ in range(draw.randint(0, 3)))
        width, most = draw.choice([1, 2, 4, 8]), draw.randint(1, 300)
        runs = list(runs_of_rows(whole(shape), width, most))
        assert tiling_fault(shape, runs) is None
        row = width * (whole(shape).volume // shape[0] if shape else 1)
        assert all(one.volume * width <= max(most, row) for one in runs)
        if len(runs) > 1:
            assert len(runs) == -(-shape[0] // max(1, most // row)), "no more than must be"
            heights = [one.shape[0] for one in runs]
            assert max(heights) - min(heights) <= 1


def test_a_box_without_elements_or_dims_is_itself():
    assert list(runs_of_rows(Box((0, 0), (0, 4)), 4, 1)) == [Box((0, 0), (0, 4))]
    assert list(runs_of_rows(Box((), ()), 8, 1)) == [Box((), ())]


def test_files_are_as_many_as_asked_and_alike_where_boxes_are_small():
    draw = random.Random(2)
    for _ in range(200):
        files = draw.randint(1, 9)
        sizes = [draw.randint(1, 100) for _ in range(draw.randint(0, 200))]
        dealt = Sizing(files=files).deal(sizes)
        assert [i for one in dealt for i in one] == list(range(len(sizes))), "in their order, each once"
        share = sum(sizes) / files
        if sizes and max(sizes) <= share:
            assert len(dealt) == files
            assert all(share - 100 <= sum(sizes[i] for i in one) <= share + 100 for one in dealt)
        assert len(dealt) <= files
        assert all(dealt) or dealt == [[]]


def test_no_file_passes_its_bound_but_with_one_box():
    draw = random.Random(3)
    for _ in range(200):
        most = draw.randint(1, 500)
        sizes = [draw.randint(0, 200) for _ in range(draw.randint(0, 100))]
        dealt = Sizing(most_bytes=most).deal(sizes)
        assert [i for one in dealt for i in one] == list(range(len(sizes)))
        assert all(len(one) <= 1 or sum(sizes[i] for i in one) <= most for one in dealt)


def test_boxes_are_bounded_by_the_share_of_a_file_and_by_memory():
    assert Sizing(files=4).most_box(1000) == 250
    assert Sizing(files=1).most_box(1 << 40) == cuts.MOST_BOX_BYTES
    assert Sizing(most_bytes=5000).most_box(1 << 40) == 5000
    assert Sizing(files=3).most_box(0) == 1


NAMES = {
    "model/layers.0.ffn.up.weight": ("model", "layers.0.ffn.up.weight"),
    "ema/norm.weight": ("ema", "norm.weight"),
    "optimizer/layers.0.ffn.up.weight/exp_avg_sq": ("optimizer", "state.layers.0.ffn.up.weight.exp_avg_sq"),
    "optimizer/head.weight/momentum": ("optimizer", "state.head.weight.momentum_buffer"),
    "rng/pp0-dp3-ep0-cp0-tp1/cuda": ("rng", "pp0-dp3-ep0-cp0-tp1", "cuda"),
    "something/else": ("something/else",),
}


@pytest.mark.parametrize("ours, theirs", NAMES.items())
def test_names_in_pytorchs_format_and_back(ours, theirs):
    assert path_of(ours) == theirs
    assert from_dcp(to_dcp(ours)) == ours


@pytest.mark.parametrize(
    "name", ["slurmtrain", "epoch", "model", "optimizer.state.w.step", "optimizer.param_groups.w.lr", "lr_scheduler.x"]
)
def test_what_is_none_of_ours(name):
    assert from_dcp(name) is None
