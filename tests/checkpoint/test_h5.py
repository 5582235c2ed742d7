"""Boxes come back bit for bit, whole or in part, under every element type; the files are ordinary HDF5."""

from __future__ import annotations

import random

import h5py
import numpy as np
import pytest
import xxhash

from slurmtrain.boxes import Box, whole
from slurmtrain.checkpoint import h5
from slurmtrain.checkpoint.dtypes import carrier
from slurmtrain.checkpoint.h5 import RankFileReader, RankFileWriter
from slurmtrain.errors import CheckpointError, CorruptCheckpointError
from slurmtrain.store.manifest import StoredBox

FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
DTYPES = [*FLOATS, "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"]


def bits(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Arbitrary bit patterns of a type, NaNs and infinities included."""
    kind = carrier(dtype)
    if dtype == "bool":
        return np.random.default_rng(seed).integers(0, 2, shape).astype(bool)
    return np.random.default_rng(seed).integers(0, 256, (*shape, kind.itemsize), np.uint8).view(kind).reshape(shape)


def write(path, *tensors):
    """Write (name, box, array, dtype); the boxes by name."""
    writer = RankFileWriter(path)
    for name, box, array, dtype in tensors:
        writer.add(name, box, array, dtype)
    writer.close()
    return dict(writer.boxes)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 600_000), (2, 3, 400, 500)])
def test_bits_survive_under_every_type_small_and_large(tmp_path, dtype, shape):
    array = bits(dtype, shape)
    boxes = write(tmp_path / "f.h5", ("w", whole(shape), array, dtype))
    with RankFileReader(tmp_path / "f.h5") as reader:
        back = reader.read(boxes["w"], whole(shape), dtype)
    assert back.tobytes() == array.tobytes()


def test_narrow_floats_are_real_hdf5_numbers_for_others(tmp_path):
    """bfloat16 is the upper half of a float32: expected values need no library of ours."""
    wide = np.array([1.0, -2.5, 3.140625, 1e30, 0.0], np.float32)
    half = (wide.view(np.uint32) >> 16).astype(np.uint16)
    e4m3, e5m2 = np.array([0x38, 0xB8, 0x01], np.uint8), np.array([0x3C, 0xBC, 0x7B], np.uint8)
    boxes = write(
        tmp_path / "f.h5",
        ("b", whole((5,)), half, "bfloat16"),
        ("4", whole((3,)), e4m3, "float8_e4m3fn"),
        ("5", whole((3,)), e5m2, "float8_e5m2"),
    )
    with h5py.File(tmp_path / "f.h5") as file:
        expected = (half.astype(np.uint32) << 16).view(np.float32)
        assert np.array_equal(file[boxes["b"].dataset].astype("f4")[:], expected)
        assert file[boxes["4"].dataset].astype("f4")[:].tolist() == [1.0, -1.0, 2.0**-9]
        assert file[boxes["5"].dataset].astype("f4")[:].tolist() == [1.0, -1.0, 57344.0]


def test_small_boxes_share_one_dataset_and_large_ones_have_their_own(tmp_path):
    small = [(f"s{i}", whole((7, 3)), bits("float32", (7, 3), i), "float32") for i in range(500)]
    large = ("large", whole((1 << 18,)), bits("float32", (1 << 18,)), "float32")
    boxes = write(tmp_path / "f.h5", *small[:250], large, *small[250:])
    with h5py.File(tmp_path / "f.h5") as file:
        assert sorted(file) == ["d000001", "flat-float32-0"]
        assert all(not file[name].attrs for name in file)
        assert file["d000001"].chunks is None
    with RankFileReader(tmp_path / "f.h5") as reader:
        for name, box, array, dtype in [*small, large]:
            assert reader.read(boxes[name], box, dtype).tobytes() == array.tobytes()


def test_many_small_boxes_go_out_in_segments(tmp_path, monkeypatch):
    monkeypatch.setattr(h5, "SEGMENT_BYTES", 1000)
    tensors = [(f"s{i}", whole((50,)), bits("float32", (50,), i), "float32") for i in range(23)]
    boxes = write(tmp_path / "f.h5", *tensors)
    with h5py.File(tmp_path / "f.h5") as file:
        assert sorted(file) == [f"flat-float32-{i}" for i in range(5)]
    with RankFileReader(tmp_path / "f.h5") as reader:
        assert all(reader.read(boxes[n], b, d).tobytes() == a.tobytes() for n, b, a, d in tensors)


@pytest.mark.parametrize("order", ["forwards", "backwards", "at random"])
def test_small_boxes_come_in_any_order_with_few_reads_when_it_is_theirs(tmp_path, monkeypatch, order):
    reads, real = [], h5._select
    monkeypatch.setattr(h5, "_select", lambda source, region, out, dtype: (reads.append(out.nbytes), real(source, region, out, dtype)))
    monkeypatch.setattr(h5, "WINDOW_BYTES", 4000)
    tensors = [(f"s{i}", whole((10, 9)), bits("float32", (10, 9), i), "float32") for i in range(110)]
    boxes = write(tmp_path / "f.h5", *tensors)
    wanted = {"forwards": tensors, "backwards": tensors[::-1], "at random": random.Random(1).sample(tensors, 110)}[order]
    with RankFileReader(tmp_path / "f.h5") as reader:
        assert all(reader.read(boxes[n], b, d).tobytes() == a.tobytes() for n, b, a, d in wanted)
        part = reader.read(boxes["s7"], Box((2, 3), (5, 4)), "float32")
    assert part.tobytes() == tensors[7][2][2:7, 3:7].tobytes()
    if order == "forwards":
        assert len(reads) < 15
    assert sum(reads) < 2 * 110 * 360


@pytest.mark.parametrize("rows_from", [0, 10**9])
@pytest.mark.parametrize("shape", [(64, 48), (1000, 400), (20, 30, 40, 15)])
def test_any_part_is_the_slice_numpy_cuts(tmp_path, monkeypatch, shape, rows_from):
    """Both ways of reading (rows in blocks; runs one by one) against numpy's own slicing."""
    monkeypatch.setattr(h5, "LONG_RUN_BYTES", rows_from)
    monkeypatch.setattr(h5, "BLOCK_BYTES", 50_000)
    at = tuple(5 * i for i in range(len(shape)))
    array = bits("float32", shape)
    boxes = write(tmp_path / "f.h5", ("w", Box(at, shape), array, "float32"))
    generator = np.random.default_rng(1)
    with RankFileReader(tmp_path / "f.h5") as reader:
        for _ in range(20):
            start = [int(generator.integers(0, n)) for n in shape]
            extent = tuple(int(generator.integers(1, n - s + 1)) for n, s in zip(shape, start, strict=True))
            box = Box(tuple(s + a for s, a in zip(start, at, strict=True)), extent)
            expected = array[tuple(slice(s, s + e) for s, e in zip(start, extent, strict=True))]
            assert np.array_equal(reader.read(boxes["w"], box, "float32").view(np.uint32), expected.view(np.uint32))
            strided = np.zeros((*extent, 2), np.float32)[..., 0]
            reader.read(boxes["w"], box, "float32", strided)
            assert strided.tobytes() == expected.tobytes()


def test_a_view_with_strides_is_stored_like_its_copy(tmp_path):
    array = bits("float32", (600, 900))
    tensors = [("large", whole((900, 600)), array.T, "float32"), ("small", whole((450, 2)), array[:2, ::2].T, "float32")]
    boxes = write(tmp_path / "f.h5", *tensors)
    with RankFileReader(tmp_path / "f.h5") as reader:
        assert all(reader.read(boxes[n], b, d).tobytes() == a.tobytes() for n, b, a, d in tensors)


def test_an_empty_box_leaves_no_trace(tmp_path):
    assert write(tmp_path / "f.h5", ("e", Box((3, 0), (0, 4)), np.empty((0, 4), np.float32), "float32")) == {}


def test_close_gives_the_sums_of_the_bytes_on_disk_after_fsync(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("slurmtrain.checkpoint.h5.fsync_file", synced.append)
    writer = RankFileWriter(tmp_path / "f.h5")
    writer.add("w", whole((500_000,)), bits("float32", (500_000,)))
    sums = writer.close(chunk_bytes=1 << 20)
    data = (tmp_path / "f.h5").read_bytes()
    assert sums.size == len(data)
    assert sums.xxh3_64 == tuple(xxhash.xxh3_64(data[i : i + (1 << 20)]).hexdigest() for i in range(0, len(data), 1 << 20))
    assert synced == [tmp_path / "f.h5"]


def test_errors_name_the_file_and_the_dataset(tmp_path):
    box = write(tmp_path / "f.h5", ("w", whole((3,)), bits("float32", (3,)), "float32"))["w"]
    with pytest.raises(CheckpointError, match=r"none\.h5: no such file"):
        RankFileReader(tmp_path / "none.h5")
    (tmp_path / "cut.h5").write_bytes((tmp_path / "f.h5").read_bytes()[:700])
    with pytest.raises(CorruptCheckpointError, match=r"cut\.h5: cannot be opened as HDF5"):
        RankFileReader(tmp_path / "cut.h5")
    with RankFileReader(tmp_path / "f.h5") as reader:
        for stored, dtype, words in [
            (StoredBox(box.box, "f.h5", "nothing", 0), "float32", "nothing"),
            (box, "float16", "not float16"),
            (StoredBox(whole((3,)), "f.h5", box.dataset, 1), "float32", "does not hold"),
            (StoredBox(whole((4,)), "f.h5", box.dataset), "float32", "the index says"),
        ]:
            with pytest.raises(CorruptCheckpointError, match=rf"f\.h5: dataset .*{words}"):
                reader.read(stored, stored.box, dtype)
    with pytest.raises(CheckpointError, match="complex64 are not stored"):
        carrier("complex64")
