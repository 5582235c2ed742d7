"""Which source gives the sample at a position: a function of the weights and the position alone, in closed form.

The sources are the leaves of a binary tree that halves their weights as well as it can. Of the first p samples that pass a node with
weights a (left) and b (right), the left side has had

    left(p) = floor(p a / (a + b) + 1/2)

and the right side the rest; so position p goes left where left(p + 1) > left(p). It is exact: each source gives its own samples
one after the other, and after any multiple of the sum of the (whole-numbered) weights exactly its share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import gcd, lcm


def whole_weights(weights: Sequence[float]) -> list[int]:
    """The least whole numbers in the same ratios; decimals are taken as they are written.

    >>> whole_weights([0.7, 0.2, 0.1]), whole_weights([2, 4])
    ([7, 2, 1], [1, 2])
    """
    fractions = [Fraction(repr(weight)) for weight in weights]
    scale = lcm(*(one.denominator for one in fractions))
    whole = [int(one * scale) for one in fractions]
    return [one // gcd(*whole) for one in whole]


@dataclass(frozen=True)
class _Node:
    """Sources `low` to below `high`, split at `middle`; a leaf has one. `left`, `right`: the weights of both sides."""

    low: int
    middle: int
    high: int
    left: int
    right: int

    def passed(self, position: int) -> int:
        """How many of the first `position` samples went left."""
        total = self.left + self.right
        return (2 * position * self.left + total) // (2 * total)


class Mixture:
    """Sources by weight."""

    def __init__(self, weights: Sequence[float]) -> None:
        assert weights, "no sources"
        assert all(weight > 0 for weight in weights), weights
        self.weights = tuple(whole_weights(weights))
        self._sums = (0, *accumulate(self.weights))
        self._nodes: dict[tuple[int, int], _Node] = {}

    def pick(self, position: int) -> tuple[int, int]:
        """(source, how many samples it has given before) of the sample at this position."""
        assert position >= 0, position
        low, high = 0, len(self.weights)
        while high - low > 1:
            node = self._node(low, high)
            left = node.passed(position)
            if node.passed(position + 1) > left:
                high, position = node.middle, left
            else:
                low, position = node.middle, position - left
        return low, position

    def _node(self, low: int, high: int) -> _Node:
        if (low, high) not in self._nodes:
            sums = self._sums
            half = sums[low] + sums[high]
            middle = min(range(low + 1, high), key=lambda cut: abs(2 * sums[cut] - half))
            self._nodes[low, high] = _Node(low, middle, high, sums[middle] - sums[low], sums[high] - sums[middle])
        return self._nodes[low, high]
