"""The exact interval of a Poisson mean, against tables by other hands."""

from __future__ import annotations

import math

import pytest

from slurmtrain.telemetry.poisson import at_most, interval

# 95 %: Garwood 1936 and its successors (E. S. Pearson, H. O. Hartley, "Biometrika Tables for Statisticians" I, table 40).
TABLE = {
    0: (0.0, 3.689),
    1: (0.0253, 5.572),
    2: (0.242, 7.225),
    3: (0.619, 8.767),
    5: (1.623, 11.668),
    10: (4.795, 18.390),
    50: (37.11, 65.92),
}


@pytest.mark.parametrize("count", TABLE)
def test_the_limits_are_those_of_the_table(count):
    assert interval(count) == pytest.approx(TABLE[count], abs=6e-3)


@pytest.mark.parametrize("count", [419, 10_000])
def test_large_counts_by_wilson_and_hilfertys_approximation(count):
    """chi-square quantiles by a cube root of a normal one (Proc. Natl. Acad. Sci. 17, 1931): within 1e-5 at these sizes."""
    low, high = (k * (1 - 1 / (9 * k) + z / (3 * math.sqrt(k))) ** 3 for k, z in ((count, -1.959964), (count + 1, 1.959964)))
    assert interval(count) == pytest.approx((low, high), rel=1e-5)


def test_the_sum_of_the_distribution():
    assert at_most(3, 2.0) == pytest.approx(math.exp(-2) * (1 + 2 + 2 + 8 / 6))
    assert (at_most(-1, 2.0), at_most(0, 0.0)) == (0.0, 1.0)
    assert at_most(400, 1.0) == pytest.approx(1.0)
