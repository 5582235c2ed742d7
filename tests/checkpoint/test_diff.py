"""Two checkpoints compared: against numpy on the whole arrays, for layouts, cuts and block sizes that have nothing in common."""

from __future__ import annotations

import doctest
import tracemalloc

import numpy as np
import pytest
import torch

from slurmtrain.boxes import Box, tiling_fault
from slurmtrain.checkpoint import diff as module
from slurmtrain.checkpoint import skeleton
from slurmtrain.checkpoint.diff import bytes_of, compare, split
from slurmtrain.errors import CorruptCheckpointError
from tests.checkpoint.stored import cut_columns, cut_rows, flip, store

RNG = np.random.default_rng(3)
WIDE = RNG.standard_normal((512, 4096)).astype(np.float32)
SMALL = {
    "model/w": RNG.standard_normal((37, 53)).astype(np.float32),
    "model/deep": RNG.standard_normal((5, 4, 7)).astype(np.float64),
    "model/scale": np.array(3.5, np.float32),
    "optimizer/w/exp_avg": ("bfloat16", RNG.integers(0, 1 << 16, (37, 53)).astype(np.uint16)),
    "rng/a/cpu": RNG.integers(0, 255, 500).astype(np.uint8),
    "model/counts": RNG.integers(-(2**62), 2**62, 11),
}


def every(_name: str) -> bool:
    return True


def stored(tmp_path, name, tensors, **how):
    folder = tmp_path / name / "step-00000005"
    return folder, store(folder, 5, tensors, **how)


HOWS = [{"files": 1}, {"files": 3}, {"files": 4, "cut": cut_columns}]


@pytest.mark.parametrize("block_bytes", [16, 1000, 1 << 20])
@pytest.mark.parametrize("how", HOWS)
def test_the_same_tensors_are_identical_whatever_their_layout(tmp_path, how, block_bytes):
    heard = []
    a, b = stored(tmp_path, "a", SMALL, **how), stored(tmp_path, "b", SMALL, files=2)
    found = compare(a, b, every, block_bytes=block_bytes, advance=heard.append)
    assert [one.name for one in found] == sorted(SMALL)
    assert all(one.identical for one in found)
    total = sum((one[1] if isinstance(one, tuple) else one).nbytes for one in SMALL.values())
    assert sum(heard) == total == bytes_of(a[1], every)


@pytest.mark.parametrize("block_bytes", [200_000, 64 << 20])
def test_panels_are_found_by_their_columns(tmp_path, monkeypatch, block_bytes):
    """One changed element anywhere in a matrix in panels is found where it is, read row-wise or column-wise from the other."""
    monkeypatch.setattr(skeleton, "PANEL_BYTES", 1 << 20)
    other = WIDE.copy()
    other[300, 3000] += 1.5
    other[511, 4095] += 0.25
    a, b = stored(tmp_path, "a", {"model/w": WIDE}), stored(tmp_path, "b", {"model/w": other}, files=2, cut=cut_rows)
    assert a[1].tensors["model/w"].boxes[0].panel
    for left, right in ((a, b), (b, a)):
        (one,) = compare(left, right, every, block_bytes=block_bytes)
        gaps = np.abs(WIDE.astype(np.float64) - other.astype(np.float64))
        assert (one.apart.differing, one.apart.max_abs, one.at) == (2, gaps.max(), (300, 3000))
        shares = gaps / np.maximum(np.abs(WIDE), np.abs(other))
        assert one.apart.max_rel == pytest.approx(shares.max(), rel=1e-12)
        assert not one.identical


def test_differences_of_each_kind(tmp_path):
    mine = dict(SMALL)
    theirs = dict(SMALL)
    theirs["model/w"] = SMALL["model/w"].astype(np.float64)
    theirs["model/scale"] = np.array([3.5], np.float32)
    bits = SMALL["optimizer/w/exp_avg"][1].copy()
    bits[:] = 0x3F80
    mine["optimizer/w/exp_avg"] = ("bfloat16", bits.copy())
    bits[7, 9], bits[8, 0] = 0x7FC0, 0xBF80
    theirs["optimizer/w/exp_avg"] = ("bfloat16", bits)
    del theirs["rng/a/cpu"]
    theirs["model/new"] = np.zeros(3, np.float32)
    found = {one.name: one for one in compare(stored(tmp_path, "a", mine), stored(tmp_path, "b", theirs, files=2), every)}
    assert found["model/deep"].identical
    assert found["model/counts"].identical
    w = found["model/w"]
    assert (w.identical, w.dtypes, w.apart.differing, w.apart.max_abs) == (False, ("float32", "float64"), 0, 0.0)
    scale = found["model/scale"]
    assert (scale.comparable, scale.shapes) == (False, ((), (1,)))
    average = found["optimizer/w/exp_avg"]
    assert (average.apart.differing, average.apart.max_abs, average.at, average.apart.lone_nans) == (2, 2.0, (8, 0), 1)
    assert average.apart.max_rel == 2.0
    assert found["rng/a/cpu"].shapes == ((500,), None)
    assert found["model/new"].dtypes == (None, "float32")
    assert not any(found[name].identical for name in ("rng/a/cpu", "model/new", "model/scale"))


def test_bfloat16_differences_are_those_that_torch_computes(tmp_path):
    torch.manual_seed(1)
    x, y = torch.randn(40, 30).bfloat16(), torch.randn(40, 30).bfloat16()
    pair = [{"model/w": ("bfloat16", one.view(torch.int16).numpy().view(np.uint16))} for one in (x, y)]
    (one,) = compare(stored(tmp_path, "a", pair[0]), stored(tmp_path, "b", pair[1]), every)
    gaps = (x.double() - y.double()).abs()
    assert one.apart.max_abs == gaps.max().item()
    assert one.at == tuple(divmod(int(gaps.argmax()), 30))
    assert one.apart.differing == int((x.view(torch.int16) != y.view(torch.int16)).sum())


def test_only_some_names(tmp_path):
    a, b = stored(tmp_path, "a", SMALL), stored(tmp_path, "b", {"model/w": SMALL["model/w"]})
    found = compare(a, b, lambda name: name == "model/w")
    assert [one.name for one in found] == ["model/w"]
    assert bytes_of(a[1], lambda name: name == "model/w") == SMALL["model/w"].nbytes


def test_a_flipped_bit_is_damage_and_no_difference(tmp_path):
    a, b = stored(tmp_path, "a", {"model/w": WIDE}), stored(tmp_path, "b", {"model/w": WIDE})
    at = b[1].tensors["model/w"].boxes[0].at + 5_000_000
    flip(b[0] / "rank-00000.h5", at)
    with pytest.raises(CorruptCheckpointError, match="model/w"):
        compare(a, b, every)
    (one,) = compare(a, b, every, policy="sizes")
    assert one.apart.differing == 1


def test_memory_is_that_of_blocks_not_of_tensors(tmp_path):
    big = {"model/w": np.zeros((4096, 4096), np.float32)}
    a, b = stored(tmp_path, "a", big), stored(tmp_path, "b", big, files=2)
    tracemalloc.start()
    (one,) = compare(a, b, every, block_bytes=1 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert one.identical
    assert peak < 24 << 20, "64 MiB a side, had they been read whole"


@pytest.mark.parametrize("most", [1, 2, 3, 7, 30, 1000])
@pytest.mark.parametrize("box", [Box((0, 0), (5, 6)), Box((2, 1, 4), (3, 1, 5)), Box((7,), (13,)), Box((), ()), Box((3, 3), (1, 9))])
def test_pieces_tile_a_box_and_are_no_larger_than_asked(box, most):
    pieces = list(split(box, most))
    shifted = [Box(tuple(a - b for a, b in zip(one.offset, box.offset, strict=True)), one.shape) for one in pieces]
    assert tiling_fault(box.shape, shifted) is None
    assert all(one.volume <= most for one in pieces)


def test_the_examples_are_true():
    assert doctest.testmod(module).failed == 0
