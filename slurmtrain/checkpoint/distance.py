"""What the stored bits of each element type mean as numbers, and how far two arrays of them are apart."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

STEP = 1 << 20
"""Elements looked at together: bounds the memory for doubles."""


@dataclass
class Distance:
    """How far arrays are apart. `differing`: elements of other bits (of other value where the types differ); `max_abs`, `max_rel`: the
    largest |a - b|, and the largest |a - b| / max(|a|, |b|), infinite where one side alone is; `at`: flat index of the first element
    with the largest |a - b|; `lone_nans`: elements that are NaN on one side alone, which count in no maximum.
    """

    differing: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    at: int | None = None
    lone_nans: int = 0

    def include(self, other: Distance, start: int = 0) -> bool:
        """Take in what was found in other elements, the first of them number `start`; whether it is now the farthest."""
        farther = other.max_abs > self.max_abs
        if farther:
            assert other.at is not None
            self.max_abs, self.at = other.max_abs, start + other.at
        self.max_rel = max(self.max_rel, other.max_rel)
        self.differing += other.differing
        self.lone_nans += other.lone_nans
        return farther


def distance(a: np.ndarray, a_type: str, b: np.ndarray, b_type: str) -> Distance:
    """Of two arrays of one shape, contiguous, in the carriers of their types.

    >>> distance(np.float32([1, 2, np.nan]), "float32", np.float32([1, 4, np.nan]), "float32")
    Distance(differing=1, max_abs=2.0, max_rel=0.5, at=1, lone_nans=0)
    """
    assert a.shape == b.shape, (a.shape, b.shape)
    found = Distance()
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    for start in range(0, flat_a.size, STEP):
        found.include(_piece(flat_a[start : start + STEP], a_type, flat_b[start : start + STEP], b_type), start)
    return found


def _piece(a: np.ndarray, a_type: str, b: np.ndarray, b_type: str) -> Distance:
    where = np.flatnonzero(_bits(a) != _bits(b)) if a_type == b_type else np.arange(a.size)
    if not where.size:
        return Distance()
    x, y = numbers(a[where], a_type), numbers(b[where], b_type)
    gaps, shares, lone = _gaps(x, y)
    differing = where.size if a_type == b_type else int(np.count_nonzero((gaps != 0) | lone))
    most = int(gaps.argmax())
    at = int(where[most]) if gaps[most] > 0 else None
    return Distance(differing, float(gaps[most]), float(shares.max()), at, int(np.count_nonzero(lone)))


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.itemsize}")


def _gaps(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """|x - y|, its share of the larger, and where one alone is NaN (both are 0 there, and where both are NaN)."""
    if x.dtype.kind == y.dtype.kind and x.dtype.kind in "iu":  # exact, though the difference may not fit the type
        u, v = x.astype(f"{x.dtype.kind}8").view(np.uint64), y.astype(f"{y.dtype.kind}8").view(np.uint64)
        gaps = np.where(x > y, u - v, v - u).astype(np.float64)
    else:
        gaps = None
    with np.errstate(invalid="ignore", over="ignore"):  # signalling NaNs, inf - inf
        x, y = x.astype(np.float64), y.astype(np.float64)
        nan = np.isnan(x), np.isnan(y)
        if gaps is None:
            gaps = np.abs(x - y)
            gaps[(x == y) | nan[0] | nan[1]] = 0.0
        shares = np.divide(gaps, np.maximum(np.abs(x), np.abs(y)), out=np.zeros_like(gaps), where=gaps > 0)
    shares[np.isinf(gaps)] = np.inf
    return gaps, shares, nan[0] != nan[1]


def numbers(array: np.ndarray, dtype: str) -> np.ndarray:
    """Elements in the carrier of a type as numbers that numpy knows, none rounded."""
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype == "float8_e5m2":
        return (array.astype(np.uint16) << np.uint16(8)).view(np.float16)
    if dtype == "float8_e4m3fn":
        return _e4m3fn()[array]
    return array.view(np.uint8) if dtype == "bool" else array


@cache
def _e4m3fn() -> np.ndarray:
    """The 256 values: 4 bits of exponent, bias 7, 3 of mantissa; no infinities, NaN where all bits but the sign are set."""
    code = np.arange(128)
    exponent, mantissa = code >> 3, code & 7
    plain = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    plain[127] = np.nan
    return np.concatenate([plain, -plain]).astype(np.float32)
