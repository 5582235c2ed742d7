"""What is read of a file, and compared, and kept: no more than the policy and the wishes ask for."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from slurmtrain.boxes import Box, whole
from slurmtrain.checkpoint import load, reading, skeleton
from slurmtrain.checkpoint.load import PartReader, Wish, loose_chunks
from slurmtrain.errors import CorruptCheckpointError
from slurmtrain.store.manifest import FileSum, Manifest
from tests.checkpoint.stored import flip, store, with_chunks
from tests.checkpoint.tilings import cut, part_of


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


def test_after_the_first_error_no_more_is_read(tmp_path, monkeypatch, bytes_read):
    monkeypatch.setattr(load, "THREADS", 1)
    folder, manifest, array = chunked(tmp_path)
    flip(folder / "rank-00000.h5", manifest.tensors["w"].boxes[0].at)
    with PartReader(folder, manifest) as reader, pytest.raises(CorruptCheckpointError):
        reader.fill_all([Wish(part_of("w", array.shape), "int32", np.zeros_like(array))])
    assert bytes_read == [4096]


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
