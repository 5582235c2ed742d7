"""Checkpoints of format 1, which name datasets, are read like those of format 2; their files may hold anything."""

from __future__ import annotations

import shutil
from dataclasses import replace
from math import prod
from pathlib import Path

import h5py
import numpy as np
import pytest
import xxhash

from slurmtrain.boxes import Box
from slurmtrain.checkpoint.dtypes import carrier
from slurmtrain.checkpoint.group import SoloGroup
from slurmtrain.checkpoint.load import PartReader, Wish
from slurmtrain.checkpoint.located import located
from slurmtrain.checkpoint.restore import restore
from slurmtrain.errors import CorruptCheckpointError
from slurmtrain.store.manifest import FileSum, Manifest
from slurmtrain.store.verify import read_manifest
from tests.checkpoint.stored import flip, store
from tests.checkpoint.tilings import cut, part_of

FORMAT_1 = Path(__file__).parent / "releases" / "format-1" / "step-00000040"
TENSORS = {
    "model/w": ((840, 640), "float32", 1),
    "model/norm": ((600,), "float32", 2),
    "optimizer/w/exp_avg": ((96, 64), "bfloat16", 3),
    "model/scale": ((), "float32", 4),
    "rng/pp0-dp0-ep0-cp0-tp0/cpu": ((50,), "uint8", 5),
    "model/f8": ((16, 8), "float8_e4m3fn", 6),
    "model/count": ((3, 2, 2), "int64", 7),
}


def content(name: str) -> np.ndarray:
    """What the release that wrote the fixture was given."""
    shape, dtype, seed = TENSORS[name]
    count = prod(shape)
    mixed = np.arange(count, dtype=np.uint64) * np.uint64(2654435761) + np.uint64(seed)
    if name == "model/w":
        bits = ((np.arange(count) // 9973) * 3 + seed).astype(np.uint32)
    elif dtype == "float32":
        bits = ((mixed // np.uint64(64)) & np.uint64(0x3FFFFFFF)).astype(np.uint32)
    elif dtype == "bfloat16":
        bits = (mixed & np.uint64(0x3FFF)).astype(np.uint16)
    elif dtype == "int64":
        bits = mixed
    else:
        bits = (mixed & np.uint64(0x3F)).astype(np.uint8)
    return bits.view(carrier(dtype)).reshape(shape)


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(FORMAT_1, tmp_path / "checkpoints" / FORMAT_1.name)
    return tmp_path / "checkpoints" / FORMAT_1.name


@pytest.mark.parametrize("policy", ["full", "sampled", "sizes"])
def test_every_tensor_of_the_first_release_comes_back(folder, policy):
    with PartReader(folder, read_manifest(folder), policy) as reader:
        wishes = [Wish(part_of(name, shape), dtype, np.zeros(shape, carrier(dtype))) for name, (shape, dtype, _) in TENSORS.items()]
        reader.fill_all(wishes)
        for wish in wishes:
            assert wish.target.tobytes() == content(wish.part.name).tobytes(), wish.part.name
        box = Box((400, 13), (37, 600))
        target = np.zeros((600, 37), np.float32).T
        reader.fill(part_of("model/w", (840, 640), box), "float32", target)
        assert target.tobytes() == cut(content("model/w"), box).tobytes()


def test_a_run_of_the_first_release_goes_on(folder):
    def load(found):
        with PartReader(found.folder, found.manifest) as reader:
            for name, (shape, dtype, _) in TENSORS.items():
                target = np.zeros(shape, carrier(dtype))
                reader.fill(part_of(name, shape), dtype, target)
                assert target.tobytes() == content(name).tobytes()

    found = restore(folder.parent, SoloGroup(), load)
    assert (found.step, found.manifest.tokens, found.manifest.state) == (40, 320, {"position": 160, "v": 1})


@pytest.mark.parametrize("at", [0, 700, 500_000])
def test_a_damaged_file_is_not_given_to_hdf5(folder, at, monkeypatch):
    """It may crash on it."""
    given, real = [], h5py.File
    monkeypatch.setattr(h5py, "File", lambda path, *more, **options: (given.append(path.name), real(path, *more, **options))[1])
    flip(folder / "rank-00001.h5", at)
    with (
        PartReader(folder, read_manifest(folder), "sizes") as reader,
        pytest.raises(CorruptCheckpointError, match=r"rank-00001\.h5: chunk 0 "),
    ):
        reader.fill(part_of("model/w", (840, 640)), "float32", np.zeros((840, 640), np.float32))
    assert given == ["rank-00000.h5"]


def changed(manifest: Manifest, name: str, **fields) -> Manifest:
    entry = manifest.tensors[name]
    tensors = {**manifest.tensors, name: replace(entry, boxes=tuple(replace(one, **fields) for one in entry.boxes))}
    return replace(manifest, tensors=tensors)


@pytest.mark.parametrize(
    "name, fields, words",
    [
        ("model/w", {"dataset": "nothing"}, "dataset nothing: not there, or not contiguous"),
        ("model/norm", {"dataset": "flat-bfloat16-0"}, "dataset flat-bfloat16-0: its elements are not float32"),
        ("model/norm", {"start": 400}, "dataset flat-float32-0: 301 elements, the index says 700 or more"),
    ],
)
def test_an_index_that_does_not_fit_the_files_is_told(folder, name, fields, words):
    manifest = changed(read_manifest(folder), name, **fields)
    shape = TENSORS[name][0]
    with PartReader(folder, manifest) as reader, pytest.raises(CorruptCheckpointError, match=rf"{name}: .*rank-0000.\.h5: {words}"):
        reader.fill(part_of(name, shape), "float32", np.zeros(shape, np.float32))


def test_a_foreign_file_with_the_right_sums_is_told(folder):
    data = b"not HDF5 at all" * 1000
    (folder / "rank-00000.h5").write_bytes(data)
    sums = FileSum(len(data), (xxhash.xxh3_64_hexdigest(data),))
    manifest = read_manifest(folder)
    manifest = replace(manifest, files={**manifest.files, "rank-00000.h5": sums})
    with PartReader(folder, manifest) as reader, pytest.raises(CorruptCheckpointError, match=r"rank-00000\.h5: cannot be opened as HDF5"):
        reader.fill(part_of("model/w", (840, 640)), "float32", np.zeros((840, 640), np.float32))


def test_a_manifest_of_format_2_is_left_as_it_is(tmp_path):
    made = store(tmp_path / "c", 1, {"w": np.ones(3, np.float32)})
    manifest = Manifest.from_json(made.to_json())
    assert located(tmp_path / "c", manifest) is manifest
    again = located(tmp_path / "c", made)
    assert dict(again.tensors) == dict(made.tensors)
    assert located(tmp_path / "c", again) is again
