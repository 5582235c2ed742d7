"""The reader that docs/checkpoint.md shows reads what we write: the description of the format is good enough to write one from."""

from __future__ import annotations

import re
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from slurmtrain.boxes import Box
from slurmtrain.checkpoint.group import SoloGroup
from slurmtrain.checkpoint.saver import ArraySource, Header, Piece, Terms
from slurmtrain.checkpoint.sync import SyncSaver
from slurmtrain.rundir import RunDir
from slurmtrain.store.retention import RetentionPolicy
from tests.fakes.thread_group import run_ranks

DOCS = Path(__file__).resolve().parents[2] / "docs" / "checkpoint.md"
ARRAYS = {
    "model/large": np.arange(2 * 2048 * 4096, dtype=np.uint32).view(np.float32).reshape(4096, 4096),
    "model/small": np.linspace(-1, 1, 600, dtype=np.float32).reshape(20, 30),
    "model/cube": np.arange(24, dtype=np.int64).reshape(2, 3, 4),
    "model/half": np.arange(64, dtype=np.uint16).reshape(8, 8),
}
TYPES = {"model/half": "bfloat16"}


def pieces(rank: int) -> list[Piece]:
    """The upper half on rank 0, the lower on rank 1."""
    halves = []
    for name, array in ARRAYS.items():
        rows = array.shape[0] // 2
        box = Box((rank * rows, *(0 for _ in array.shape[1:])), (rows, *array.shape[1:]))
        halves.append(Piece(name, array.shape, box, TYPES.get(name, array.dtype.name), array[rank * rows : (rank + 1) * rows]))
    return halves


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    run = RunDir(tmp_path_factory.mktemp("documented"))
    terms = Terms(run, RetentionPolicy(1), allow_nonfinite=True)
    header = Header(7, 1, 0, 0.0, {}, {})
    outcomes = run_ranks(2, lambda group: SyncSaver(terms, group, owner_check=lambda: None).begin(header, ArraySource(pieces(group.rank))))
    assert all(one.ok for one in outcomes), outcomes
    return run.checkpoint(7)


@pytest.fixture(scope="module")
def read_tensor():
    (code,) = (one for one in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL) if "def read_tensor" in one)
    names: dict = {}
    exec(code, names)
    return names["read_tensor"]


@pytest.mark.parametrize("name", ARRAYS)
def test_the_documented_reader_reads_it(folder, read_tensor, name):
    expected = ARRAYS[name]
    if name in TYPES:
        expected = (expected.astype(np.uint32) << 16).view(np.float32)
    got = read_tensor(folder, name)
    assert got.shape == expected.shape
    assert got.tobytes() == expected.tobytes()


def test_a_box_has_panels_and_another_shares_a_dataset(folder):
    text = (folder / "manifest.json").read_text()
    assert re.search(r'"model/large@0,0",null,\d+,512,', text)
    assert '"flat-float32",0,' in text


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_every_number_is_the_same_to_hdf5_but_the_large_ones_of_e4m3fn(tmp_path, dtype):
    """HDF5 knows floats with infinities alone: where e4m3fn has numbers (256 to 448) it sees infinities and NaNs."""
    bits = {"bfloat16": np.uint16}.get(dtype, np.uint8)
    codes = np.arange(np.iinfo(bits).max + 1, dtype=bits)
    source = ArraySource([Piece("model/w", codes.shape, Box((0,), codes.shape), dtype, codes)])
    run = RunDir(tmp_path)
    outcome = SyncSaver(Terms(run, RetentionPolicy(1), allow_nonfinite=True), SoloGroup(), owner_check=lambda: None).begin(
        Header(7, 1, 0, 0.0, {}, {}), source
    )
    assert outcome is not None
    assert outcome.ok, outcome
    with h5py.File(run.checkpoint(7) / "rank-00000.h5") as file:
        got = file[f"flat-{dtype}"].astype("f4")[:]
    expected = torch.from_numpy(codes).view(getattr(torch, dtype)).float().numpy()
    large = np.abs(expected) >= 256 if dtype == "float8_e4m3fn" else np.zeros(codes.shape, bool)
    assert np.array_equal(got[~large], expected[~large], equal_nan=True)
    assert (large.sum(), np.isfinite(got[large]).any()) == (14 if dtype == "float8_e4m3fn" else 0, False)
