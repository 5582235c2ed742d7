"""The order is a function of (seed, epoch, index) alone: a permutation, the same for ever, different for each seed and epoch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.data.sampler import Sampler, permuted

M1, M2, G = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB), np.uint64(0x9E3779B97F4A7C15)


def mix(z):
    z = (z ^ (z >> np.uint64(30))) * M1
    z = (z ^ (z >> np.uint64(27))) * M2
    return z ^ (z >> np.uint64(31))


def order(n: int, seed: int, epoch: int) -> list[int]:
    """The order of an epoch by the definition in the module's docstring, over all numbers at once, in numpy's 64-bit arithmetic."""
    with np.errstate(over="ignore"):
        h = mix(mix(np.array([seed], np.uint64) + G) + np.uint64(epoch) + G)
        bits = int(np.ceil(np.log2(n))) if n > 1 else 0
        x = np.arange(n, dtype=np.uint64)
        todo = np.ones(n, bool)
        while todo.any():
            widths = [bits // 2, bits - bits // 2]
            left, right = x[todo] >> np.uint64(widths[1]), x[todo] & np.uint64(2 ** widths[1] - 1)
            for r in range(8):
                key = mix(h + np.uint64(r + 1) * G)
                left, right = right, left ^ (mix(right + key) & np.uint64(2 ** widths[0] - 1))
                widths.reverse()
            x[todo] = (left << np.uint64(widths[1])) | right
            todo = x >= n
    return [int(value) for value in x]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 16, 17, 100, 1000, 4096, 4097])
@pytest.mark.parametrize("seed, epoch", [(0, 0), (1234, 0), (1234, 1), (2**63, 7)])
def test_the_order_is_the_documented_one_and_a_permutation(n, seed, epoch):
    expected = order(n, seed, epoch)
    assert sorted(expected) == list(range(n))
    assert [permuted(i, n, seed, epoch) for i in range(n)] == expected


def test_golden_values():
    """Made by a program in C from the definition. Never to change: a run that a newer release resumes goes on in the same order."""
    assert [permuted(i, 10, 1234, 0) for i in range(10)] == [0, 8, 6, 9, 2, 1, 3, 7, 5, 4]
    assert [permuted(i, 10**12, 99, 3) for i in (0, 1, 999_999_999_999)] == [331287081084, 284577975712, 359690769203]


@given(st.integers(1, 3000), st.integers(0, 2**64), st.integers(0, 1000))
def test_any_size_is_a_permutation(n, seed, epoch):
    assert sorted(permuted(i, n, seed, epoch) for i in range(n)) == list(range(n))


@pytest.mark.parametrize("n", [5, 6, 8, 12])
def test_every_place_is_as_likely_as_any_other(n):
    """Counts of (sample, place) over many epochs. For random permutations, with N/n expected in each cell, (n - 1) / n times the sum of
    squared deviations over the expected count is chi-square with (n - 1)^2 degrees of freedom; five standard deviations are allowed."""
    epochs = 2000
    counts = np.zeros((n, n))
    for epoch in range(epochs):
        for i in range(n):
            counts[i, permuted(i, n, 7, epoch)] += 1
    chi2 = (n - 1) / n * ((counts - epochs / n) ** 2 / (epochs / n)).sum()
    freedom = (n - 1) ** 2
    assert abs(chi2 - freedom) < 5 * (2 * freedom) ** 0.5


def test_positions_run_over_epochs():
    sampler = Sampler(7, seed=3)
    seen = [sampler.index_of(position) for position in range(21)]
    assert [sorted(seen[i : i + 7]) for i in (0, 7, 14)] == [list(range(7))] * 3
    assert seen[:7] != seen[7:14] != seen[14:]
    assert [sampler.epoch_of(position) for position in (0, 6, 7, 20)] == [0, 0, 1, 2]
    assert [Sampler(7, seed=4).index_of(position) for position in range(7)] != seen[:7]


def test_a_trillion_samples_take_no_memory_and_no_time():
    sampler = Sampler(10**12, seed=1)
    assert all(0 <= sampler.index_of(position) < 10**12 for position in range(0, 10**13, 10**11))
