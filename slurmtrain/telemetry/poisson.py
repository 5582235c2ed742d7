"""What a count of rare events says about their rate: the exact interval of a Poisson mean.

F. Garwood, "Fiducial limits for the Poisson distribution", Biometrika 28 (1936) 437-442: the limits are the means at which so few, or so
many, events would have half of 1 - confidence left; by bisection of the distribution's own sum, which needs no table and no library.

>>> [round(one, 4) for one in interval(0)], [round(one, 3) for one in interval(10)]
([0.0, 3.6889], [4.795, 18.39])
"""

from __future__ import annotations

import math
from collections.abc import Callable

_HALVINGS = 100
_NEGLIGIBLE = 1e-18


def interval(count: int, confidence: float = 0.95) -> tuple[float, float]:
    """The limits of the mean of a Poisson variable of which `count` was seen."""
    tail, reach = (1 - confidence) / 2, 10 * math.sqrt(count) + 20
    below, above = max(0.0, count - reach), count + reach
    low = _where(lambda mean: 1 - at_most(count - 1, mean) >= tail, below, above) if count else 0.0
    return low, _where(lambda mean: at_most(count, mean) <= tail, below, above)


def at_most(count: int, mean: float) -> float:
    """P(X <= count) of a Poisson variable.

    >>> round(at_most(2, 3.0), 6)
    0.42319
    """
    if count < 0:
        return 0.0
    if mean <= 0:
        return 1.0
    first = min(count, int(mean + 40 * math.sqrt(mean) + 50))  # beyond it nothing is left that a float could hold
    term, total = math.exp(first * math.log(mean) - mean - math.lgamma(first + 1)), 0.0
    for i in range(first, -1, -1):
        total += term
        term *= i / mean
        if i < mean and term < total * _NEGLIGIBLE:
            break
    return min(1.0, total)


def _where(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Where a condition begins to hold that holds from some point on."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
