"""Files laid out in memory and written around: h5py, without us, reads from them what was put in; every way gives the same bytes."""

from __future__ import annotations

import random
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest
import xxhash

from slurmtrain.boxes import Box, whole
from slurmtrain.checkpoint import skeleton, writing
from slurmtrain.checkpoint.dtypes import carrier
from slurmtrain.checkpoint.layout import BoxSpec
from slurmtrain.checkpoint.skeleton import lay_out
from slurmtrain.checkpoint.writing import write_file
from slurmtrain.errors import CheckpointError
from slurmtrain.syscalls import SYSTEM

FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
DTYPES = [*FLOATS, "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"]


def bits(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Arbitrary bit patterns of a type, NaNs and infinities included."""
    kind, generator = carrier(dtype), np.random.default_rng(seed)
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    return generator.integers(0, 256, (*shape, kind.itemsize), np.uint8).view(kind).reshape(shape)


def written(folder, *tensors):
    """Write (name, array, dtype), or (name, array, dtype, box, global shape); layout and path."""
    specs = []
    for name, array, dtype, *more in tensors:
        box, shape = more or (whole(array.shape), array.shape)
        specs.append(BoxSpec(name, shape, box, dtype))
    layout = lay_out("rank-00000.h5", specs)
    path = folder / layout.file
    sums = write_file(SYSTEM, path, layout, lambda i: tensors[i][1])
    return layout, path, sums


def by_h5py(path, stored, dtype, shape):
    """The bytes of a box as h5py's own reading gives them: types that numpy has not are asked for as they are in the file."""
    with h5py.File(path) as file:
        source = file[stored.dataset]
        kind = carrier(dtype)
        memory = source.id.get_type() if dtype in {"bfloat16", "float8_e4m3fn", "float8_e5m2"} else h5py.h5t.py_create(kind, logical=True)
        content = np.empty(source.shape, kind)
        source.id.read(h5py.h5s.ALL, h5py.h5s.ALL, content, mtype=memory)
        if stored.start is not None:
            content = content[stored.start : stored.start + stored.box.volume].reshape(shape)
        assert source.attrs.keys() == set()
    return content.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_h5py_reads_what_was_put_in(tmp_path, monkeypatch, dtype):
    """All types, 0 to 4 dims, small and large, with and without panels."""
    monkeypatch.setattr(skeleton, "SMALL_BYTES", 4096)
    monkeypatch.setattr(skeleton, "PANEL_BYTES", 2048)
    monkeypatch.setattr(skeleton, "PANEL_ROW_BYTES", 64)
    shapes = [(), (1,), (3, 5), (7, 3, 2), (2, 3, 4, 5), (6001,), (2, 7000), (2, 3, 40, 50), (64, 4096), (4096, 512)]
    tensors = [(f"t{i}", bits(dtype, shape, i), dtype) for i, shape in enumerate(shapes)]
    layout, path, _ = written(tmp_path, *tensors)
    assert any(one.panel for one in layout.stored)
    assert any(one.start is not None for one in layout.stored)
    for stored, (_, array, _) in zip(layout.stored, tensors, strict=True):
        assert by_h5py(path, stored, dtype, array.shape) == array.tobytes()


def test_narrow_floats_are_real_numbers_for_others(tmp_path):
    """bfloat16 is the upper half of a float32: expected values need no library of ours."""
    wide = np.array([1.0, -2.5, 3.140625, 1e30, 0.0], np.float32)
    half = (wide.view(np.uint32) >> 16).astype(np.uint16)
    e4m3, e5m2 = np.array([0x38, 0xB8, 0x01], np.uint8), np.array([0x3C, 0xBC, 0x7B], np.uint8)
    _, path, _ = written(tmp_path, ("b", half, "bfloat16"), ("4", e4m3, "float8_e4m3fn"), ("5", e5m2, "float8_e5m2"))
    with h5py.File(path) as file:
        assert np.array_equal(file["flat-bfloat16"].astype("f4")[:], (half.astype(np.uint32) << 16).view(np.float32))
        assert file["flat-float8_e4m3fn"].astype("f4")[:].tolist() == [1.0, -1.0, 2.0**-9]
        assert file["flat-float8_e5m2"].astype("f4")[:].tolist() == [1.0, -1.0, 57344.0]


def test_names_and_shapes_are_those_of_the_tensors(tmp_path, monkeypatch):
    monkeypatch.setattr(skeleton, "PANEL_BYTES", 1 << 20)
    a, b = bits("float32", (1024, 2048)), bits("float32", (300_000,))
    where = Box((512, 0), (1024, 2048))
    _, path, _ = written(
        tmp_path,
        ("model/layers.3.w", a, "float32", where, (4096, 2048)),
        ("model/layers.3.norm", b[:7], "float32"),
        ("model/bias", b, "float32"),
    )
    with h5py.File(path) as file:
        found = {}
        file.visititems(lambda name, one: found.update({name: one.shape}) if isinstance(one, h5py.Dataset) else None)
        assert found == {"model/layers.3.w@512,0": (1024, 2048), "model/bias@0": (300_000,), "flat-float32": (7,)}
        assert np.array_equal(file["model/layers.3.w@512,0"][100:200, 7:900].view(np.uint32), a[100:200, 7:900].view(np.uint32))
        assert file["model/layers.3.w@512,0"].chunks == (1024, 256)


@pytest.mark.skipif(shutil.which("h5dump") is None, reason="h5dump is not installed")
def test_h5dump_reads_it(tmp_path):
    _, path, _ = written(tmp_path, ("w", bits("bfloat16", (1024, 4096)), "bfloat16"), ("v", bits("float32", (3,)), "float32"))
    done = subprocess.run(["h5dump", "-H", path], capture_output=True, text=True, check=True)
    assert "( 1024, 4096 )" in done.stdout


@pytest.mark.parametrize("count", [1, 40, 1500])
def test_any_number_of_datasets(tmp_path, monkeypatch, count):
    """HDF5's groups, heaps and trees grow and are moved while it lays out."""
    monkeypatch.setattr(skeleton, "SMALL_BYTES", 0)
    rng = random.Random(count)
    tensors = [
        (f"model/{'deep/' * rng.randrange(3)}layers.{i}.{'x' * rng.randrange(120)}", bits("float32", (rng.randrange(1, 9),), i), "float32")
        for i in range(count)
    ]
    layout, path, _ = written(tmp_path, *tensors)
    with h5py.File(path) as file:
        for stored, (_, array, _) in zip(layout.stored, tensors, strict=True):
            assert file[stored.dataset][:].tobytes() == array.tobytes()
    data = path.read_bytes()
    for stored, (_, array, _) in zip(layout.stored, tensors, strict=True):
        assert data[stored.at : stored.at + array.nbytes] == array.tobytes()


def mixed(seed):
    rng = random.Random(seed)
    tensors = []
    for i in range(rng.randrange(1, 30)):
        dtype, dims = rng.choice(DTYPES), rng.randrange(5)
        shape = tuple(rng.randrange(1, [1, 3000, 60, 20, 9][dims]) for _ in range(dims))
        if rng.random() < 0.3:
            shape = (rng.choice([8, 64]), rng.choice([64, 512]))
        array = bits(dtype, shape, i)
        if array.ndim == 2 and rng.random() < 0.5:
            array = np.ascontiguousarray(array.T).T
        if array.ndim and rng.random() < 0.3:
            array = np.repeat(array, 2, axis=-1)[..., ::2]
        tensors.append((f"t{i}", array, dtype))
    return tensors


@pytest.mark.parametrize("seed", range(12))
def test_writing_gives_the_same_bytes_each_time_and_their_sums(tmp_path, monkeypatch, seed):
    """Arrays with any strides; chunks that boxes and panels cross."""
    monkeypatch.setattr(skeleton, "SMALL_BYTES", 2048)
    monkeypatch.setattr(skeleton, "PANEL_BYTES", 1024)
    monkeypatch.setattr(skeleton, "PANEL_ROW_BYTES", 16)
    monkeypatch.setattr(writing, "CHUNK_BYTES", [1000, 4096, 1 << 20][seed % 3])
    tensors = mixed(seed)
    (tmp_path / "once").mkdir()
    (tmp_path / "again").mkdir()
    layout, path, sums = written(tmp_path / "once", *tensors)
    again, second, _ = written(tmp_path / "again", *tensors)
    data, step = path.read_bytes(), writing.CHUNK_BYTES
    assert layout == again
    assert data == second.read_bytes()
    assert sums.size == len(data) == layout.size
    expected = [xxhash.xxh3_64(data[i : i + step]).hexdigest() for i in range(0, len(data), step)]
    assert list(sums.xxh3_64) == expected
    for stored, (_, array, dtype) in zip(layout.stored, tensors, strict=True):
        assert by_h5py(path, stored, dtype, array.shape) == array.tobytes()


def test_what_is_no_box_and_no_structure_is_zero(tmp_path, monkeypatch):
    monkeypatch.setattr(skeleton, "PANEL_BYTES", 1 << 20)
    layout, path, _ = written(tmp_path, ("a", bits("uint8", (5,)), "uint8"), ("w", bits("float32", (1024, 2048)), "float32"))
    data = np.fromfile(path, np.uint8)
    for at, piece in layout.structure:
        assert data[at : at + len(piece)].tobytes() == piece
        data[at : at + len(piece)] = 0
    for spec, stored in zip(layout.specs, layout.stored, strict=True):
        assert data[stored.at : stored.at + spec.nbytes].any()
        data[stored.at : stored.at + spec.nbytes] = 0
    assert not data.any()


def test_large_boxes_begin_at_pages_and_small_ones_follow_one_another(tmp_path):
    tensors = [(f"s{i}", bits("float32", (7, 3), i), "float32") for i in range(500)]
    large = [(f"l{i}", bits("bfloat16", shape, i), "bfloat16") for i, shape in enumerate([(1 << 20,), (2048, 2048), (1001, 999)])]
    layout, *_ = written(tmp_path, *tensors, *large)
    starts = [one.at for one in layout.stored]
    assert all(b - a == 84 for a, b in pairwise(starts[:500]))
    assert all(at % 4096 == 0 for at in starts[500:])
    assert [one.panel for one in layout.stored[500:]] == [0, 0, 0]


@pytest.mark.parametrize(
    "shape, dtype, panel",
    [
        ((4096, 2048), "float32", 256),
        ((4097, 2048), "float32", 0),
        ((2048, 16384), "bfloat16", 2048),
        ((8192, 8190), "float32", 0),
        ((1 << 23,), "float32", 0),
        ((16, 4096, 512), "float32", 0),
        ((1 << 20, 64), "float32", 0),
        ((1 << 18, 1 << 18), "float32", 2048),
    ],
)
def test_large_matrices_lie_in_panels(shape, dtype, panel):
    """Of an eighth of their columns, or less where HDF5 could not address one; not where runs would be short, nor of 4 MiB less."""
    assert skeleton.panel_of(BoxSpec("w", shape, whole(shape), dtype)) == panel


def test_structure_is_small_beside_data(tmp_path):
    layout = lay_out("rank-00000.h5", [BoxSpec(f"model/layers.{i}.w", (4096, 4096), whole((4096, 4096)), "float32") for i in range(500)])
    assert sum(len(data) for _, data in layout.structure) < 500 * 4096
    assert layout.size < 500 * (64 << 20) * 1.001


def test_a_file_of_no_tensors_is_a_file(tmp_path):
    _, path, sums = written(tmp_path)
    with h5py.File(path) as file:
        assert list(file) == []
    assert sums.size == path.stat().st_size > 0


def test_a_file_that_is_there_is_not_written_over(tmp_path):
    _, path, _ = written(tmp_path, ("a", bits("uint8", (5,)), "uint8"))
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        written(tmp_path, ("b", bits("uint8", (6,)), "uint8"))
    assert path.read_bytes() == before


@pytest.mark.parametrize("at", [0, 3, 7])
def test_what_a_box_raises_comes_through_and_no_descriptor_stays(tmp_path, at):
    layout = lay_out("rank-00000.h5", [BoxSpec(f"t{i}", (1000,), whole((1000,)), "float32") for i in range(8)])

    def fetch(index):
        if index == at:
            raise CheckpointError("the device is gone")
        return np.zeros(1000, np.float32)

    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(CheckpointError, match="the device is gone"):
        write_file(SYSTEM, tmp_path / layout.file, layout, fetch)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_types_that_are_not_stored_are_refused():
    with pytest.raises(CheckpointError, match="complex64 are not stored"):
        lay_out("rank-00000.h5", [BoxSpec("w", (3,), whole((3,)), "complex64")])
