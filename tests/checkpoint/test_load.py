"""Parts wanted are cut with boxes stored: any part of any tiling is what numpy cuts; what cannot be had is an error that names it."""

from __future__ import annotations

import itertools
import os
import random
import tempfile
import tracemalloc
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmtrain.boxes import Box, whole
from slurmtrain.checkpoint import load, reading, skeleton
from slurmtrain.checkpoint.load import PartReader, Wish, loose_chunks
from slurmtrain.errors import CheckpointError, CorruptCheckpointError, UnreadableCheckpointError
from slurmtrain.store.listing import Found
from slurmtrain.store.manifest import FileSum, Manifest, StoredBox, TensorEntry
from slurmtrain.store.verify import read_manifest, sums_of
from tests.checkpoint.arrays import SHAPES, cut, rows, values, wrong_tensors
from tests.checkpoint.stored import flip, store
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


@pytest.mark.parametrize("most", [2, 5])
@pytest.mark.parametrize("at_once", [True, False])
def test_few_files_stay_open(tmp_path, monkeypatch, most, at_once):
    monkeypatch.setattr(load, "OPEN_FILES", most)
    monkeypatch.setattr(load, "THREADS", 1)
    monkeypatch.setattr(load, "AHEAD", 0)
    opened, peak, real, shut = set(), [0], reading.os.open, reading.os.close

    def note(path, *more):
        fd = real(path, *more)
        opened.add(fd)
        peak[0] = max(peak[0], len(opened))
        return fd

    monkeypatch.setattr(reading.os, "open", note)
    monkeypatch.setattr(reading.os, "close", lambda fd: (opened.discard(fd), shut(fd))[1])
    array = np.arange(200, dtype=np.int32)
    manifest = store(tmp_path / "c", 1, {"w": array}, files=20)
    with PartReader(tmp_path / "c", manifest) as reader:
        if at_once:
            target = np.zeros_like(array)
            reader.fill_all([Wish(part_of("w", array.shape), "int32", target)])
        else:
            target = np.zeros_like(array)
            for i in range(0, 200, 5):
                reader.fill(part_of("w", array.shape, Box((i,), (5,))), "int32", target[i : i + 5])
    assert np.array_equal(target, array)
    assert peak == [most]
    assert opened == set()


def test_after_the_first_error_no_more_is_read(tmp_path, bytes_read):
    folder, manifest, array = chunked(tmp_path)
    flip(folder / "rank-00000.h5", manifest.tensors["w"].boxes[0].at)
    with PartReader(folder, manifest) as reader, pytest.raises(CorruptCheckpointError):
        reader.fill_all([Wish(part_of("w", array.shape), "int32", np.zeros_like(array))])
    assert bytes_read[0] <= 2 * load.THREADS * 4096


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


def with_chunks(manifest: Manifest, folder: Path) -> Manifest:
    """The manifest with sums of its own size of chunks, which the writer's are not."""
    return replace(manifest, files={name: sums_of(folder / name, manifest.chunk_bytes) for name in manifest.files})


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


def chunked(tmp_path):
    """A file of 20 chunks and a bit, all of one tensor; its manifest, read back, and the values."""
    array = np.arange(20 * 1024, dtype=np.int32)
    made = store(tmp_path / "c", 1, {"w": array}, chunk_bytes=4096)
    manifest = Manifest.from_json(with_chunks(made, tmp_path / "c").to_json())
    return tmp_path / "c", manifest, array


@pytest.mark.parametrize("policy", ["full", "sampled", "sizes"])
@pytest.mark.parametrize("one_by_one", [False, True])
def test_policies_compare_what_they_say(tmp_path, policy, one_by_one):
    """A bit is flipped in one chunk of the tensor after another: found in all, in every 8th and the last of the file, in none."""
    folder, manifest, array = chunked(tmp_path)
    path, loose = folder / "rank-00000.h5", loose_chunks(manifest)["rank-00000.h5"]
    held = [chunk for chunk in range(len(manifest.files[path.name].xxh3_64)) if chunk not in loose]
    assert len(held) >= 20
    seen = []
    for chunk in held:
        flip(path, chunk * 4096 + 2000)
        target = np.zeros_like(array)
        parts = [Box((low,), (512,)) for low in range(0, len(array), 512)] if one_by_one else [whole(array.shape)]
        with PartReader(folder, manifest, policy) as reader:
            wishes = [Wish(part_of("w", array.shape, box), "int32", target[box.offset[0] :][: box.shape[0]]) for box in parts]
            words = outcome(lambda: [reader.fill(*wish) for wish in wishes] if one_by_one else reader.fill_all(wishes))  # noqa: B023
        if words:
            assert f"w: {path}: chunk {chunk} " in words
            seen.append(chunk)
        else:
            assert (target != array).sum() == 1
        flip(path, chunk * 4096 + 2000)
    assert seen == [chunk for chunk in held if policy == "full" or (policy == "sampled" and chunk % 8 == 0)]


@pytest.mark.parametrize("policy", ["full", "sampled", "sizes"])
def test_the_first_chunk_and_the_last_are_among_those_that_are_sampled(tmp_path, policy):
    folder, manifest, _ = chunked(tmp_path)
    name, sums = "rank-00000.h5", manifest.files["rank-00000.h5"]
    wrong = FileSum(sums.size, tuple("0" * 16 for _ in sums.xxh3_64))
    count = len(sums.xxh3_64)
    reader = reading.FileReader(folder / name, wrong, 4096, policy)
    compared = [chunk for chunk in range(count) if outcome(lambda: reader.whole(chunk))]  # noqa: B023
    reader.close()
    assert compared == {"full": list(range(count)), "sampled": [0, 8, 16, count - 1], "sizes": []}[policy]


def outcome(deed) -> str:
    """What the deed says is corrupt; nothing where it is content."""
    try:
        deed()
    except CorruptCheckpointError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("policy", ["full", "sampled", "sizes"])
def test_only_what_is_wanted_is_read(tmp_path, bytes_read, policy):
    """Whole chunks where they are compared, else the bytes alone."""
    folder, manifest, array = chunked(tmp_path)
    at = manifest.tensors["w"].boxes[0].at
    start = (4096 * 5 - at) // 4  # the first element of chunk 5
    target = np.zeros(1024 * 2, np.int32)
    with PartReader(folder, manifest, policy) as reader:
        reader.fill_all([Wish(part_of("w", array.shape, Box((start,), (2048,))), "int32", target)])
    assert np.array_equal(target, array[start : start + 2048])
    assert bytes_read == [8192]
    bytes_read[0] = 0
    with PartReader(folder, manifest, policy) as reader:
        reader.fill_all([Wish(part_of("w", array.shape, Box((start + 10,), (5,))), "int32", target[:5])])
    assert bytes_read == [4096 if policy == "full" else 20]


@pytest.fixture
def bytes_read(monkeypatch):
    """How many bytes were read; one number in a list."""
    count, real = [0], reading.os.preadv

    def preadv(fd, targets, at):
        done = real(fd, targets, at)
        count[0] += done
        return done

    monkeypatch.setattr(reading.os, "preadv", preadv)
    return count


@pytest.mark.parametrize("gap, expected", [(1000, 20 * 40), (1 << 18, 19 * 8000 + 40)])
def test_rows_that_are_far_apart_are_read_one_by_one(tmp_path, monkeypatch, bytes_read, gap, expected):
    monkeypatch.setattr(reading, "LONG_GAP", gap)
    array = np.arange(40_000, dtype=np.int32).reshape(20, 2000)
    manifest = store(tmp_path / "c", 1, {"w": array})
    target = np.zeros((20, 10), np.int32)
    with PartReader(tmp_path / "c", manifest, "sizes") as reader:
        reader.fill_all([Wish(part_of("w", array.shape, Box((0, 100), (20, 10))), "int32", target)])
    assert np.array_equal(target, array[:, 100:110])
    assert bytes_read == [expected]


@pytest.mark.parametrize("gap, expected", [(1000, 2 * 400), (1 << 18, 10 * 400)])
def test_what_lies_far_apart_is_not_read_at_once(tmp_path, monkeypatch, bytes_read, gap, expected):
    monkeypatch.setattr(reading, "LONG_GAP", gap)
    tensors = {f"t{i}": np.full(100, i, np.float32) for i in range(10)}
    manifest = store(tmp_path / "c", 1, tensors)
    targets = {name: np.zeros(100, np.float32) for name in ("t0", "t9")}
    with PartReader(tmp_path / "c", manifest, "sizes") as reader:
        reader.fill_all([Wish(part_of(name, (100,)), "float32", target) for name, target in targets.items()])
    assert all(np.array_equal(target, tensors[name]) for name, target in targets.items())
    assert bytes_read == [expected]


def test_of_chunks_that_were_read_for_single_tensors_few_are_kept(tmp_path):
    folder, manifest, array = chunked(tmp_path)
    with PartReader(folder, manifest) as reader:
        for start in [*range(0, len(array), 300), 0]:
            target = np.zeros(min(300, len(array) - start), np.int32)
            reader.fill(part_of("w", array.shape, Box((start,), target.shape)), "int32", target)
            assert np.array_equal(target, array[start : start + 300])
            assert len(reader._kept) <= load.KEPT_CHUNKS


def test_small_tensors_one_by_one_do_not_read_a_chunk_each(tmp_path, monkeypatch):
    tensors = {f"t{i}": np.full(100, i, np.float32) for i in range(300)}
    manifest = store(tmp_path / "c", 1, tensors)
    calls, real = [], reading.os.preadv
    monkeypatch.setattr(reading.os, "preadv", lambda *more: (calls.append(1), real(*more))[1])
    with PartReader(tmp_path / "c", manifest) as reader:
        for name, array in tensors.items():
            target = np.zeros(100, np.float32)
            reader.fill(part_of(name, (100,)), "float32", target)
            assert np.array_equal(target, array)
    assert len(calls) == 1


@pytest.mark.parametrize("direct", [16, 1 << 20])
@pytest.mark.parametrize("most", [1, 7, 1000])
def test_a_system_that_gives_less_than_it_is_asked_for_is_asked_again(tmp_path, monkeypatch, most, direct):
    monkeypatch.setattr(reading, "DIRECT_BYTES", direct)
    folder, manifest, array = chunked(tmp_path)
    real = reading.os.preadv
    monkeypatch.setattr(reading.os, "preadv", lambda fd, targets, at: real(fd, [targets[0][:most]], at))
    small = manifest.files["rank-00000.h5"].size // 40
    target = np.zeros(small, np.int32)
    with PartReader(folder, manifest) as reader:
        reader.fill_all([Wish(part_of("w", array.shape, Box((11,), (small,))), "int32", target)])
    assert np.array_equal(target, array[11 : 11 + small])


def test_a_file_that_shrinks_while_it_is_read_is_told(tmp_path, monkeypatch):
    folder, manifest, array = chunked(tmp_path)
    path, real = folder / "rank-00000.h5", reading.os.preadv

    def preadv(fd, targets, at):
        if path.stat().st_size > 50_000:
            with path.open("r+b") as file:
                file.truncate(50_000)
        return real(fd, targets, at)

    monkeypatch.setattr(reading.os, "preadv", preadv)
    with PartReader(folder, manifest, "sizes") as reader, pytest.raises(CorruptCheckpointError, match=r"w: .*: ends at byte 50000, "):
        reader.fill_all([Wish(part_of("w", array.shape), "int32", np.zeros_like(array))])


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


@pytest.mark.parametrize("policy", ["full", "sizes"])
@pytest.mark.parametrize("box", [whole((2048, 4096)), Box((0, 512), (2048, 512)), Box((256, 0), (256, 4096)), Box((3, 5), (2000, 4000))])
def test_no_more_is_in_memory_than_targets_and_a_block_for_each_thread(tmp_path, monkeypatch, policy, box):
    """Of a matrix in panels, whole and cut, into targets with strides: nothing is kept but what is wanted."""
    monkeypatch.setattr(skeleton, "PANEL_BYTES", 1 << 20)
    array = np.arange(2048 * 4096, dtype=np.int32).reshape(2048, 4096)
    manifest = store(tmp_path / "c", 1, {"w": array})
    target = np.zeros((*box.shape, 2), np.int32)[..., 0]
    target[...] = 1
    tracemalloc.start()
    try:
        with PartReader(tmp_path / "c", manifest, policy) as reader:
            reader.fill_all([Wish(part_of("w", array.shape, box), "int32", target)])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert np.array_equal(target, cut(array, box))
    assert peak < load.THREADS * reading.BLOCK_BYTES + (1 << 20)
