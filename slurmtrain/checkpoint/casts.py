"""Floating-point types cast on numpy arrays, bfloat16 in its carrier included: through float32, rounded to nearest, ties to even."""

from __future__ import annotations

import numpy as np

from slurmtrain.checkpoint.dtypes import carrier

FLOATS = ("float64", "float32", "float16", "bfloat16")


def cast(array: np.ndarray, source: str, target: str) -> np.ndarray:
    """Elements of type `source`, in its carrier, as type `target` in its carrier. Both are among FLOATS."""
    assert source in FLOATS, source
    assert target in FLOATS, target
    if source == target:
        return array
    wide = _from_bfloat16(array) if source == "bfloat16" else array
    if target == "bfloat16":
        return _to_bfloat16(wide.astype(np.float32))
    with np.errstate(over="ignore"):  # infinity is seen by the caller
        return wide.astype(carrier(target))


def finite(array: np.ndarray, dtype: str) -> bool:
    """Whether every element is a finite number."""
    if dtype == "bfloat16":
        return bool(((array & 0x7F80) != 0x7F80).all())
    return bool(np.isfinite(array).all())


def _from_bfloat16(array: np.ndarray) -> np.ndarray:
    return (array.astype(np.uint32) << 16).view(np.float32)


def _to_bfloat16(array: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(array).view(np.uint32)
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))
    return np.where(np.isnan(array), (bits >> 16) | 0x40, rounded >> 16).astype(carrier("bfloat16"))
