"""Parts wanted are cut with boxes stored: any part of any tiling is what numpy cuts; what cannot be had is an error that names it."""

from __future__ import annotations

import itertools
import os
import random
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmtrain.boxes import Box
from slurmtrain.checkpoint import load, reading, skeleton
from slurmtrain.checkpoint.load import PartReader, Wish, loose_chunks
from slurmtrain.errors import CheckpointError, CorruptCheckpointError, UnreadableCheckpointError
from slurmtrain.store.listing import Found
from slurmtrain.store.manifest import FileSum, Manifest, StoredBox, TensorEntry
from slurmtrain.store.verify import read_manifest
from tests.checkpoint.arrays import SHAPES, cut, rows, values, wrong_tensors
from tests.checkpoint.stored import flip, store, with_chunks
from tests.checkpoint.tilings import part_of, store_at_random, wish_at_random


def parts_are_what_numpy_cuts(rng: random.Random) -> None:
    sizes = {
        "BLOCK_BYTES": (64, 1000, 4096),
        "DIRECT_BYTES": (16, 512, 1 << 16),
        "LONG_GAP": (0, 100, 1 << 18),
        "MOST_BUFFERS": (1, 3, 512),
    }
    patches = [mock.patch.object(reading, name, rng.choice(choices)) for name, choices in sizes.items()]
    patches += [mock.patch.object(skeleton, "SMALL_BYTES", rng.choice((64, 4096, 1 << 20)))]
    patches += [mock.patch.object(skeleton, "PANEL_BYTES", rng.choice((32, 2048, 1 << 20)))]
    patches += [mock.patch.object(skeleton, "PANEL_ROW_BYTES", rng.choice((4, 512)))]
    patches += [mock.patch.object(load, "BLOCK_BYTES", 4096), mock.patch.object(load, "OPEN_FILES", rng.choice((1, 64)))]
    with tempfile.TemporaryDirectory() as folder:
        for patch in patches:
            patch.start()
        try:
            stored = store_at_random(rng, Path(folder), rng.choice((100, 999, 4096, 1 << 20)))
            pairs = [wish_at_random(rng, stored) for _ in range(rng.randint(1, 7))]
            policy = rng.choice(("full", "full", "sampled", "sizes"))
            with PartReader(stored.folder, stored.manifest, policy, (rng.randrange(3), 3)) as reader:
                if rng.random() < 0.5:
                    reader.fill_all(wish for wish, _ in pairs)
                else:
                    for wish, _ in pairs:
                        reader.fill(*wish)
        finally:
            for patch in patches:
                patch.stop()
    for wish, expected in pairs:
        assert wish.target.tobytes() == expected.tobytes(), (wish.part, policy)


@settings(max_examples=60)
@given(st.randoms(use_true_random=False))
def test_any_part_of_any_tiling_is_what_numpy_cuts(rng):
    """Random tensors of all types, boxes, files, sizes of chunks and blocks, targets with any strides; one by one or all at once."""
    parts_are_what_numpy_cuts(rng)


@pytest.mark.long
def test_thousands_of_tilings():
    for seed in range(1500):
        parts_are_what_numpy_cuts(random.Random(seed))


@pytest.fixture
def found(tmp_path):
    """A checkpoint in three files, each with a third of every tensor."""
    folder = tmp_path / "step-00000020"
    store(folder, 20, {name: values(name, 20) for name in SHAPES}, files=3)
    return Found(20, folder, read_manifest(folder))


@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_any_number_of_ranks_gets_its_rows_of_what_three_saved(found, count):
    with PartReader(found.folder, found.manifest) as reader:
        for name, index in itertools.product(SHAPES, range(count)):
            box = rows(SHAPES[name], index, count)
            if box is not None:
                target = np.zeros(box.shape, np.float32)
                reader.fill(part_of(name, SHAPES[name], box), "float32", target)
                assert np.array_equal(target, cut(values(name, 20), box))


def test_columns_across_all_files_into_a_strided_target(found):
    box = Box((100, 200), (800, 7))
    target = np.zeros((7, 800), np.float32).T
    with PartReader(found.folder, found.manifest) as reader:
        reader.fill(part_of("model/w", SHAPES["model/w"], box), "float32", target)
    assert np.array_equal(target, values("model/w", 20)[100:900, 200:207])


def test_no_descriptor_stays(found):
    before = sorted(path.name for path in Path("/proc/self/fd").iterdir())
    assert wrong_tensors(found) == []
    with pytest.raises(CheckpointError), PartReader(found.folder, found.manifest) as reader:
        reader.fill(part_of("model/w", (3,)), "float32", np.zeros(3, np.float32))
    assert sorted(path.name for path in Path("/proc/self/fd").iterdir()) == before


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_each_begins_elsewhere_and_reads_each_chunk_once(tmp_path, monkeypatch, count):
    """Replicas that want the same do not ask the disk for the same at the same moment."""
    monkeypatch.setattr(load, "THREADS", 1)
    orders = []
    real = reading.FileReader.read
    monkeypatch.setattr(reading.FileReader, "read", lambda self, chunk, *more: (orders[-1].append(chunk), real(self, chunk, *more))[1])
    array = np.arange(60_000, dtype=np.int32)
    manifest = store(tmp_path / "c", 1, {"w": array}, chunk_bytes=1 << 15)
    manifest = with_chunks(manifest, tmp_path / "c")
    for number in range(count):
        orders.append([])
        target = np.zeros_like(array)
        with PartReader(tmp_path / "c", manifest, turn=(number, count)) as reader:
            reader.fill_all([Wish(part_of("w", array.shape), "int32", target)])
        assert np.array_equal(target, array)
    assert all(sorted(order) == sorted(orders[0]) == list(range(len(order))) for order in orders)
    assert len({order[0] for order in orders}) == count


def test_what_is_wanted_and_not_there_is_named(found):
    where = str(found.folder / "manifest.json")
    with PartReader(found.folder, found.manifest) as reader:
        for one, dtype, message in [
            (part_of("model/none", (3,)), "float32", f"model/none: not in {where}, which holds 4 tensors"),
            (part_of("model/norm", (601,)), "float32", f"model/norm: shape (600,) in {where}, (601,) in this model"),
            (part_of("model/norm", (600,)), "int32", f"model/norm: float32 in {where}, int32 in this model"),
        ]:
            with pytest.raises(CheckpointError) as caught:
                reader.fill(one, dtype, np.zeros(one.box.shape, dtype))
            assert str(caught.value) == message
            assert type(caught.value) is CheckpointError


def damage(kind: str, path: Path) -> None:
    if kind == "missing":
        path.unlink()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "short":
        path.write_bytes(path.read_bytes()[:-1])
    elif kind == "long":
        path.write_bytes(path.read_bytes() + b"\0")
    elif kind == "foreign":
        path.write_bytes(bytes(reversed(path.read_bytes())))
    elif kind == "first bit":
        flip(path, 0)
    elif kind == "last bit":
        flip(path, path.stat().st_size - 1, 7)
    elif kind == "folder":
        path.unlink()
        path.mkdir()
    elif kind == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif kind == "loop":
        path.unlink()
        path.symlink_to(path)


WORDS = {
    "missing": "No such file or directory",
    "empty": "0 bytes, SIZE were written",
    "short": "SHORT bytes, SIZE were written",
    "long": "LONG bytes, SIZE were written",
    "foreign": "chunk 0 (bytes 0 to SIZE) differs from what was written",
    "first bit": "chunk 0 (bytes 0 to SIZE) differs from what was written",
    "last bit": "chunk 0 (bytes 0 to SIZE) differs from what was written",
    "folder": "not a regular file",
    "pipe": "not a regular file",
    "loop": "Too many levels of symbolic links",
}


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("kind", WORDS)
def test_damage_names_file_and_tensors(found, kind, at_once):
    path = found.folder / "rank-00001.h5"
    damage(kind, path)
    wishes = [Wish(part_of(name, shape), "float32", np.zeros(shape, np.float32)) for name, shape in SHAPES.items()]
    with PartReader(found.folder, found.manifest) as reader, pytest.raises(CorruptCheckpointError) as caught:
        reader.fill_all(wishes) if at_once else [reader.fill(*wish) for wish in wishes]
    size = found.manifest.files[path.name].size
    words = WORDS[kind].replace("SIZE", str(size)).replace("SHORT", str(size - 1)).replace("LONG", str(size + 1))
    assert str(caught.value) == f"model/w, model/norm, optimizer/norm/exp_avg: {path}: {words}"
    assert type(caught.value) is CorruptCheckpointError


def test_a_file_that_may_not_be_read_is_not_said_to_be_damaged(found, monkeypatch):
    path, real = found.folder / "rank-00001.h5", reading.os.open

    def refuse(name, *more):
        if Path(name) == path:
            raise PermissionError(13, "Permission denied", str(name))
        return real(name, *more)

    monkeypatch.setattr(reading.os, "open", refuse)
    with PartReader(found.folder, found.manifest) as reader, pytest.raises(UnreadableCheckpointError) as caught:
        reader.fill(part_of("model/w", SHAPES["model/w"]), "float32", np.zeros(SHAPES["model/w"], np.float32))
    assert str(caught.value) == f"model/w, model/norm, optimizer/norm/exp_avg: {path}: Permission denied"


def test_of_many_tensors_in_a_damaged_chunk_some_are_named(tmp_path):
    tensors = {f"t{i}": np.full(9, i, np.float32) for i in range(50)}
    manifest = store(tmp_path / "c", 1, tensors)
    flip(tmp_path / "c" / "rank-00000.h5", manifest.tensors["t31"].boxes[0].at)
    with (
        PartReader(tmp_path / "c", manifest) as reader,
        pytest.raises(CorruptCheckpointError, match=r"^t0, t1, t2 \(and 47 more\): /.*chunk 0 "),
    ):
        reader.fill(part_of("t7", (9,)), "float32", np.zeros(9, np.float32))


def index(boxes, *, shape=(4, 6), dtype="float32", size=96) -> Manifest:
    """A manifest of one tensor `w` whose boxes lie in one file of so many bytes."""
    entry = TensorEntry(shape, dtype, tuple(boxes))
    sums = FileSum(size, ("0" * 16,))
    return Manifest.from_json(Manifest(1, 1, 0, {}, {"rank-00000.h5": sums}, {"w": entry}).to_json())


def at(offset, shape, byte=0) -> StoredBox:
    return StoredBox(Box(offset, shape), "rank-00000.h5", "d", None, byte)


@pytest.mark.parametrize(
    "boxes, words",
    [
        ([at((0, 0), (2, 6))], r"w: of the part at \(0, 0\) in .*: 12 of 24 elements are in no box"),
        ([], "w: .*24 of 24 elements are in no box"),
        ([at((0, 0), (3, 6)), at((2, 0), (2, 6), 48)], r"w: .*boxes at \(0, 0\) and \(2, 0\) overlap"),
        ([at((0, 0), (2, 6)), at((0, 0), (2, 6))], "w: .*overlap"),
        ([at((0, 0), (4, 6), 1)], r"w: its bytes end at 97 of .*rank-00000\.h5, which has 96"),
        ([at((0, 0), (4, 6), 1 << 62)], "w: its bytes end at "),
        ([at((0, 0), (5, 6))], r"w: a box at \(0, 0\) of shape \(5, 6\) in \(4, 6\)"),
        ([at((0,), (24,))], "w: not an entry of the index"),
        ([at((0, 0, 0), (4, 6, 1))], r"w: a box at \(0, 0, 0\) of shape \(4, 6, 1\) in \(4, 6\)"),
    ],
)
def test_an_index_that_does_not_hold_is_an_error_that_names_the_tensor(tmp_path, boxes, words):
    (tmp_path / "rank-00000.h5").write_bytes(bytes(96))
    with PartReader(tmp_path, index(boxes), "sizes") as reader, pytest.raises(CorruptCheckpointError, match=words):
        reader.fill_all([Wish(part_of("w", (4, 6)), "float32", np.zeros((4, 6), np.float32))])


def test_of_boxes_that_overlap_elsewhere_nothing_is_said(tmp_path):
    (tmp_path / "rank-00000.h5").write_bytes(np.arange(24, dtype=np.float32).tobytes())
    boxes = [at((0, 0), (2, 6)), at((2, 0), (2, 6), 48), at((3, 0), (1, 6))]
    target = np.zeros((2, 6), np.float32)
    with PartReader(tmp_path, index(boxes), "sizes") as reader:
        reader.fill_all([Wish(part_of("w", (4, 6), Box((1, 0), (2, 6))), "float32", target)])
    assert target.reshape(-1).tolist() == list(range(6, 18))


def test_empty_parts_and_tensors_are_filled_with_nothing(tmp_path):
    manifest = store(tmp_path / "c", 1, {"none": np.zeros((0, 3), np.float32), "w": np.ones((4, 3), np.float32)})
    with PartReader(tmp_path / "c", Manifest.from_json(manifest.to_json())) as reader:
        reader.fill_all(
            [
                Wish(part_of("none", (0, 3)), "float32", np.zeros((0, 3), np.float32)),
                Wish(part_of("w", (4, 3), Box((2, 0), (0, 3))), "float32", np.zeros((0, 3), np.float32)),
            ]
        )
        reader.fill_all([])


def test_chunks_without_tensors_are_known(tmp_path, monkeypatch):
    monkeypatch.setattr(skeleton, "SMALL_BYTES", 0)
    tensors = {f"group{i}/w": np.full(9, i, np.float32) for i in range(200)}
    made = store(tmp_path / "c", 1, tensors, chunk_bytes=512)
    manifest = with_chunks(made, tmp_path / "c")
    held = {byte // 512 for one in manifest.tensors.values() for byte in range(one.boxes[0].at, one.boxes[0].at + 36)}
    count = len(manifest.files["rank-00000.h5"].xxh3_64)
    assert loose_chunks(manifest) == {"rank-00000.h5": [i for i in range(count) if i not in held]}
    assert 10 < len(held) < count - 10
