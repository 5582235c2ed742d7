"""Names of element types and their numpy carriers; `h5types` has their types in the file.

numpy has no bfloat16 and no fp8: such elements travel as unsigned integers of the same width.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from slurmtrain.errors import CheckpointError

_FLOATS = ("float64", "float32", "float16")
_INTEGERS = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")
_PLAIN = (*_FLOATS, *_INTEGERS, "bool")
# name: (carrier, bits, sign, exponent position, exponent bits, mantissa position, mantissa bits, exponent bias)
NARROW = {
    "bfloat16": ("uint16", 16, 15, 7, 8, 0, 7, 127),
    "float8_e4m3fn": ("uint8", 8, 7, 3, 4, 0, 3, 7),
    "float8_e5m2": ("uint8", 8, 7, 2, 5, 0, 2, 15),
}


@cache
def carrier(name: str) -> np.dtype:
    """The numpy type that carries elements of this name, little-endian. Raises CheckpointError for a name that is not stored."""
    if name in NARROW:
        return np.dtype(NARROW[name][0]).newbyteorder("<")
    if name in _PLAIN:
        return np.dtype(name).newbyteorder("<")
    raise CheckpointError(f"elements of type {name} are not stored: use one of {', '.join([*_PLAIN, *NARROW])}")
