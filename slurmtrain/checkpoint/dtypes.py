"""Names of element types, their numpy carriers, and their HDF5 types.

numpy has no bfloat16 and no fp8: such elements travel as unsigned integers of the same width, and lie in the file as real HDF5
floating-point types, so that h5dump and h5py show numbers.
"""

from __future__ import annotations

from functools import cache

import h5py
import numpy as np

from slurmtrain.errors import CheckpointError

_FLOATS = ("float64", "float32", "float16")
_INTEGERS = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")
_PLAIN = (*_FLOATS, *_INTEGERS, "bool")
# name: (carrier, bits, sign, exponent position, exponent bits, mantissa position, mantissa bits, exponent bias)
_NARROW = {
    "bfloat16": ("uint16", 16, 15, 7, 8, 0, 7, 127),
    "float8_e4m3fn": ("uint8", 8, 7, 3, 4, 0, 3, 7),
    "float8_e5m2": ("uint8", 8, 7, 2, 5, 0, 2, 15),
}


@cache
def carrier(name: str) -> np.dtype:
    """The numpy type that carries elements of this name, little-endian. Raises CheckpointError for a name that is not stored."""
    if name in _NARROW:
        return np.dtype(_NARROW[name][0]).newbyteorder("<")
    if name in _PLAIN:
        return np.dtype(name).newbyteorder("<")
    raise CheckpointError(f"elements of type {name} are not stored: use one of {', '.join([*_PLAIN, *_NARROW])}")


@cache
def hdf5_type(name: str) -> h5py.h5t.TypeID:
    """The type in the file, also used for memory, so that HDF5 copies bytes and converts nothing."""
    if name not in _NARROW:
        return h5py.h5t.py_create(carrier(name), logical=True)
    _, bits, sign, exponent, exponent_bits, mantissa, mantissa_bits, bias = _NARROW[name]
    kind = h5py.h5t.IEEE_F16LE.copy()
    if bits == 16:
        kind.set_precision(bits)
        kind.set_fields(sign, exponent, exponent_bits, mantissa, mantissa_bits)
    else:  # fields must fit before the type shrinks
        kind.set_fields(sign, exponent, exponent_bits, mantissa, mantissa_bits)
        kind.set_precision(bits)
        kind.set_size(bits // 8)
    kind.set_ebias(bias)
    return kind
