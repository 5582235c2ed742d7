"""z-scores against closed forms."""

from __future__ import annotations

import math
import statistics

import pytest

from slurmtrain.train.spikes import Spikes, zscore


@pytest.mark.parametrize(
    ("loss", "before", "expected"),
    [
        (5.0, [1.0, 2.0, 3.0, 4.0, 5.0], math.sqrt(2.0)),  # mean 3, variance of 1..n is (n^2 - 1) / 12 = 2
        (16.0, [8.0, 12.0] * 50, 3.0),  # mean 10, deviation 2
        (10.0, [8.0, 12.0], 0.0),
        (1e9 + 5.0, [1e9 - 1.0, 1e9 + 1.0], 5.0),  # squares of the losses themselves would lose this
    ],
)
def test_closed_forms(loss, before, expected):
    assert zscore(loss, before) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_against_the_library():
    before = [2.5 + math.sin(number) for number in range(40)]
    assert zscore(7.0, before) == pytest.approx((7.0 - statistics.fmean(before)) / statistics.pstdev(before), rel=1e-12)


def test_nothing_to_compare_with():
    assert zscore(1.0, []) is None
    assert zscore(9.0, [1.0, 1.0]) is None


def test_a_spike_needs_a_full_window_and_leaves_it_as_it_is():
    spikes = Spikes(2.5, 4)
    for loss in (8.0, 12.0, 8.0):
        assert spikes.height(100.0) is None
        spikes.take(loss)
    assert spikes.height(100.0) is None
    spikes.take(12.0)
    assert spikes.height(15.0) is None  # z = 2.5: not above
    assert spikes.height(16.0) == pytest.approx(3.0)
    assert spikes.height(4.0) is None  # far below is no spike
    assert spikes.state() == [8.0, 12.0, 8.0, 12.0]
    spikes.take(20.0)
    assert spikes.state() == [12.0, 8.0, 12.0, 20.0]


def test_the_window_comes_back_and_may_have_shrunk():
    spikes = Spikes(2.5, 2)
    spikes.restore([1.0, 8.0, 12.0])
    assert spikes.state() == [8.0, 12.0]
    assert spikes.height(16.0) == pytest.approx(3.0)


def test_off():
    spikes = Spikes(0.0, 2)
    for loss in (1.0, 2.0, 3.0):
        spikes.take(loss)
    assert spikes.height(1e9) is None
    assert spikes.state() == []
