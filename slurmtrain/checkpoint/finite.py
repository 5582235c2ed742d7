"""Whether an array holds infinities or NaNs, about as fast as memory is read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from slurmtrain.checkpoint.dtypes import NARROW

BLOCK_BYTES = 256 << 10
"""Stays in a core's own cache."""
ONE_THREAD = 8192
"""Elements up to which the library behind numpy's vdot uses no threads, which would wait for one another and for the writing."""
_MASKS = {
    "float16": (np.uint16, 0x7C00),
    "bfloat16": (np.uint16, 0x7F80),
    "float8_e5m2": (np.uint8, 0x7C),
    "float8_e4m3fn": (np.uint8, 0x7F),
}
"""Bits that are all set where the number is none; of e4m3fn, which has no infinity, that is one pattern of each sign."""


def nonfinite(array: np.ndarray, dtype: str) -> bool:
    """Whether any element is not a finite number. `array`: in the carrier type of `dtype`, any shape and strides.

    >>> nonfinite(np.array([1.0, np.inf], np.float32), "float32"), nonfinite(np.array([3.4e38, 3.4e38], np.float32), "float32")
    (True, False)
    """
    if dtype in {"float32", "float64"}:
        if array.nbytes <= BLOCK_BYTES and array.flags.c_contiguous:  # many are small
            return _floats(array.reshape(-1))
        return any(_floats(block) for block in _blocks(array))
    if dtype not in _MASKS:
        assert dtype not in NARROW, dtype
        return False
    kind, mask = _MASKS[dtype]
    held = np.empty(BLOCK_BYTES // np.dtype(kind).itemsize, kind)
    return any(_masked(block.view(kind), held, mask) for block in _blocks(array))


def _floats(block: np.ndarray) -> bool:
    """Zero times a finite number is zero, and nothing overflows. Neither of the two warns."""
    zeros = _zeros(block.dtype)[: block.size]
    if block.size > ONE_THREAD:
        return bool(np.einsum("i,i->", block, zeros) != 0)
    return bool(np.vdot(block, zeros) != 0)


@cache
def _zeros(dtype: np.dtype) -> np.ndarray:
    return np.zeros(BLOCK_BYTES // dtype.itemsize, dtype)


def _masked(block: np.ndarray, held: np.ndarray, mask: int) -> bool:
    bits = held[: block.size]
    np.bitwise_and(block, mask, out=bits)
    return bool(bits.max() == mask)


def _blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    """All elements, in runs of at most BLOCK_BYTES, in any order."""
    count = BLOCK_BYTES // array.itemsize
    if not array.flags.c_contiguous and array.flags.f_contiguous:
        array = array.T
    if array.flags.c_contiguous:
        flat = array.reshape(-1)
        for start in range(0, flat.size, count):
            yield flat[start : start + count]
        return
    rows = max(1, count // max(1, array[0].size)) if len(array) else 1
    for start in range(0, len(array), rows):
        yield from _blocks(np.ascontiguousarray(array[start : start + rows]))
