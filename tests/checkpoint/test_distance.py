"""How far apart arrays are: against float64 arithmetic of numpy element by element, and torch's own reading of narrow floats."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest
import torch

from slurmtrain.checkpoint import distance as module
from slurmtrain.checkpoint.distance import Distance, distance, numbers

NARROW = {
    "bfloat16": (torch.bfloat16, np.uint16),
    "float8_e4m3fn": (torch.float8_e4m3fn, np.uint8),
    "float8_e5m2": (torch.float8_e5m2, np.uint8),
}


@pytest.mark.parametrize("name", NARROW)
def test_every_bit_pattern_of_a_narrow_float_is_the_number_that_torch_reads(name):
    kind, carrier = NARROW[name]
    bits = np.arange(1 << (8 * np.dtype(carrier).itemsize), dtype=carrier)
    signed = bits.view(f"i{bits.itemsize}")
    want = torch.from_numpy(signed.copy()).view(kind).to(torch.float64).numpy()
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(numbers(bits, name).astype(np.float64), want)


def plainly(a: np.ndarray, b: np.ndarray) -> Distance:
    """The definition, one element after another, in Python's numbers."""
    found = Distance()
    for i, (x, y, p, q) in enumerate(zip(a.tolist(), b.tolist(), a, b, strict=True)):
        found.differing += p.tobytes() != q.tobytes()
        if x != x or y != y:  # noqa: PLR0124 NaN
            found.lone_nans += (x != x) != (y != y)  # noqa: PLR0124
            continue
        if x == y:
            continue
        gap = abs(x - y)
        if gap > found.max_abs:
            found.max_abs, found.at = gap, i
        found.max_rel = max(found.max_rel, math.inf if math.isinf(gap) else gap / max(abs(x), abs(y)))
    return found


SPECIAL = [0.0, -0.0, 1.0, -1.0, 1.5, np.inf, -np.inf, np.nan, -np.nan, 5e-324, 1e300, -1e300]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_all_pairs_of_special_values(dtype):
    with np.errstate(over="ignore"):
        values = np.array(SPECIAL, dtype)
    a, b = (x.reshape(-1).copy() for x in np.meshgrid(values, values))
    name = np.dtype(dtype).name
    assert distance(a, name, b, name) == plainly(a, b)
    for x, y in zip(a, b, strict=True):
        one, other = np.array([x]), np.array([y])
        assert distance(one, name, other, name) == plainly(one, other), (x, y)


def test_many_elements_in_pieces(monkeypatch):
    """Broken: the index of a later piece without its start; a maximum of the last piece alone."""
    monkeypatch.setattr(module, "STEP", 64)
    rng = np.random.default_rng(7)
    a = rng.standard_normal(1000).astype(np.float32)
    b = a.copy()
    b[[5, 70, 500, 999]] += np.float32([0.5, 0.25, 8.0, 0.125])
    found = distance(a.reshape(10, 100), "float32", b.reshape(10, 100), "float32")
    assert found == plainly(a, b)
    assert (found.at, found.differing) == (500, 4)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int8, np.uint8, np.int32])
def test_whole_numbers_at_the_ends_of_their_type(dtype):
    info = np.iinfo(dtype)
    values = np.array([info.min, info.min + 1, 0, 1, info.max - 1, info.max], dtype)
    for x in values:
        for y in values:
            found = distance(np.array([x]), np.dtype(dtype).name, np.array([y]), np.dtype(dtype).name)
            gap = abs(int(x) - int(y))
            assert found.max_abs == float(gap)
            assert found.differing == (x != y)
            assert found.max_rel == pytest.approx(gap / max(abs(int(x)), abs(int(y)), 1))


def test_nans_of_any_bits_are_nans():
    """Signalling ones, too: to make doubles of them is no error."""
    nans = np.array([0x7F800001, 0x7FC00000, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert distance(nans, "float32", nans[[1, 1, 1]], "float32") == Distance(2, 0.0, 0.0, None, 0)
    assert distance(nans, "float32", np.ones(3, np.float32), "float32") == Distance(3, 0.0, 0.0, None, 3)


def test_booleans():
    found = distance(np.array([True, False, True]), "bool", np.array([True, True, False]), "bool")
    assert found == Distance(2, 1.0, 1.0, 1, 0)


def test_other_types_are_compared_by_value():
    """A bfloat16 copy of float32 values: those that it holds exactly are equal, the others are apart by their rounding."""
    values = torch.tensor([1.0, 1.0 + 2**-10, -3.0, float("nan")])
    rounded = values.to(torch.bfloat16)
    found = distance(values.numpy(), "float32", rounded.view(torch.int16).numpy().view(np.uint16), "bfloat16")
    assert found == Distance(1, 2**-10, pytest.approx(2**-10 / (1 + 2**-10)), 1, 0)


def test_nothing_at_all():
    assert distance(np.empty((0, 3), np.float32), "float32", np.empty((0, 3), np.float32), "float32") == Distance()


def test_the_examples_are_true():
    assert doctest.testmod(module).failed == 0
