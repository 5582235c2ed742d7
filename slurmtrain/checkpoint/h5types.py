"""The HDF5 types of elements: real floating-point types also for those that numpy has not, so that h5dump and h5py show numbers."""

from __future__ import annotations

from functools import cache

import h5py

from slurmtrain.checkpoint.dtypes import NARROW, carrier


@cache
def hdf5_type(name: str) -> h5py.h5t.TypeID:
    """The type in the file, also used for memory, so that HDF5 copies bytes and converts nothing."""
    if name not in NARROW:
        return h5py.h5t.py_create(carrier(name), logical=True)
    _, bits, sign, exponent, exponent_bits, mantissa, mantissa_bits, bias = NARROW[name]
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
