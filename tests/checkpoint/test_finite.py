"""Infinities and NaNs are found wherever they are; finite numbers, also the largest, never count as such. The peer is torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slurmtrain.checkpoint.dtypes import carrier
from slurmtrain.checkpoint.finite import BLOCK_BYTES, nonfinite

FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


def as_carrier(tensor: torch.Tensor) -> np.ndarray:
    name = str(tensor.dtype).removeprefix("torch.")
    return tensor.view(getattr(torch, carrier(name).name)).numpy()


@pytest.mark.parametrize("name", FLOATS)
def test_every_bit_pattern_of_narrow_types_and_the_edges_of_wide_ones(name):
    dtype = getattr(torch, name)
    if dtype.itemsize <= 2:
        patterns = np.arange(256**dtype.itemsize, dtype=np.uint32).astype(carrier(name if dtype.itemsize == 1 else "uint16"))
        tensor = torch.from_numpy(patterns.view(np.int8 if dtype.itemsize == 1 else np.int16).copy()).view(dtype)
    else:
        tiny = torch.finfo(dtype).tiny
        values = [0.0, -0.0, torch.finfo(dtype).max, torch.finfo(dtype).min, tiny, tiny / 4, np.inf, -np.inf, np.nan, -np.nan]
        tensor = torch.tensor(values, dtype=dtype)
    finite = torch.isfinite(tensor.to(torch.float64))
    assert all(nonfinite(as_carrier(one.reshape(1)), name) for one in tensor[~finite])
    assert not nonfinite(as_carrier(tensor[finite]), name)
    assert 0 < int(finite.sum()) < len(tensor)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("where", [0, -1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES // 4 + 1])
def test_one_among_many_is_found(name, where):
    most = torch.finfo(getattr(torch, name)).max
    tensor = torch.full((3 * BLOCK_BYTES // 2 + 7,), most, dtype=torch.float64).to(getattr(torch, name))
    assert not nonfinite(as_carrier(tensor), name)
    tensor[where] = torch.nan
    assert nonfinite(as_carrier(tensor), name)


@pytest.mark.parametrize("cut", [np.s_[:, 3:200], np.s_[::2], np.s_[:, ::3], np.s_[5:6, 7:8], np.s_[:0], np.s_[:, :0]], ids=str)
def test_strides_do_not_matter(cut):
    array = np.ones((900, 300), np.float32)
    assert not nonfinite(array[cut], "float32")
    assert not nonfinite(array.T[cut], "float32")
    array[...] = np.inf
    assert nonfinite(array[cut], "float32") == (array[cut].size > 0)
    assert nonfinite(array.T[cut], "float32") == (array.T[cut].size > 0)
    outside = np.full((900, 300), np.nan, np.float32)
    outside[cut] = 1.0
    assert not nonfinite(outside[cut], "float32")


def test_scalars_empties_and_whole_numbers():
    assert nonfinite(np.array(np.nan), "float64")
    assert not nonfinite(np.array(2.0), "float64")
    assert not nonfinite(np.empty((0, 3), np.float32), "float32")
    assert not nonfinite(np.full(9, 0x7F80, np.int16), "int16")
    assert not nonfinite(np.array([True, False]), "bool")
