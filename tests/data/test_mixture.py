"""The interleaving of sources: exact shares, each source in its own order, at any position at once."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.data.mixture import Mixture, whole_weights

WEIGHTS = [[1.0], [1, 1], [3, 1], [0.7, 0.2, 0.1], [1] * 8, [100, 1, 1], [0.5, 0.25, 0.125, 0.125], [2.5, 1e-3]]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_after_each_round_every_source_has_had_exactly_its_weight(weights):
    whole = whole_weights(weights)
    assert [Fraction(n, sum(whole)) for n in whole] == [Fraction(str(w)) / sum(Fraction(str(other)) for other in weights) for w in weights]
    mixture, length = Mixture(weights), sum(whole)
    for turn in (0, 1, 10**9):
        counts = Counter(mixture.pick(turn * length + i)[0] for i in range(length))
        assert [counts[source] for source in range(len(weights))] == whole


@pytest.mark.parametrize("weights", WEIGHTS)
def test_each_source_gives_its_samples_one_after_the_other_and_never_far_from_its_share(weights):
    mixture, given_ = Mixture(weights), [0] * len(weights)
    share = [weight / sum(weights) for weight in weights]
    for position in range(3000):
        source, number = mixture.pick(position)
        assert number == given_[source], "neither skipped nor repeated"
        given_[source] += 1
        assert all(abs(count - (position + 1) * part) < 2 for count, part in zip(given_, share, strict=True))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.integers(0, 10**12))
def test_any_position_is_known_at_once_and_fits_its_neighbour(weights, position):
    mixture = Mixture(weights)
    source, number = mixture.pick(position)
    ideal = position * weights[source] / sum(weights)
    assert abs(number - ideal) < 2 + 1e-3
    later = [mixture.pick(position + 1 + i) for i in range(sum(weights))]
    assert next(n for s, n in later if s == source) == number + 1


def test_golden_values():
    """Never to change: a run that is resumed goes on with the same samples. By hand: left(p) = floor(3 p / 4 + 1/2) = 0 1 2 2 3 4 5 5 6."""
    assert [Mixture([3, 1]).pick(i) for i in range(8)] == [(0, 0), (0, 1), (1, 0), (0, 2), (0, 3), (0, 4), (1, 1), (0, 5)]
