"""Every kind of damage to a checkpoint is found, and named (case C48: zero-byte shard, missing file, flipped bit, truncation)."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import xxhash

from slurmtrain.atomic import SystemDisk
from slurmtrain.boxes import Box
from slurmtrain.rundir import RunDir
from slurmtrain.store.manifest import FileSum
from slurmtrain.store.verify import read_manifest, sums_of, verify
from tests.store.checkpoints import CHUNK, save

SHARD = "rank-00001.h5"


@pytest.fixture
def folder(tmp_path):
    return save(RunDir(tmp_path), 20)


def rewrite(folder, **changes):
    manifest = replace(read_manifest(folder), **changes)
    (folder / "manifest.json").write_bytes(manifest.to_json())


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_sums_are_xxh3_64_of_chunks(tmp_path, size):
    data = random.Random(size).randbytes(size)
    (tmp_path / "f").write_bytes(data)
    expected = tuple(xxhash.xxh3_64(data[i : i + CHUNK]).hexdigest() for i in range(0, size, CHUNK))
    assert sums_of(tmp_path / "f", CHUNK) == FileSum(size, expected)


def test_a_published_checkpoint_has_no_problems(folder):
    assert verify(folder) == []


def test_a_missing_file_is_named(folder):
    (folder / SHARD).unlink()
    assert verify(folder) == [f"{SHARD}: No such file or directory"]


@pytest.mark.parametrize("size", [0, 100])
def test_an_empty_or_truncated_file_is_named_with_both_sizes(folder, size):
    was = (folder / SHARD).stat().st_size
    with open(folder / SHARD, "rb+") as file:
        file.truncate(size)
    assert verify(folder) == [f"{SHARD}: {size} bytes, {was} were written"]


def test_any_flipped_bit_is_found_in_its_chunk(folder):
    whole = (folder / SHARD).read_bytes()
    for place in random.Random(0).sample(range(len(whole)), 40):
        changed = bytearray(whole)
        changed[place] ^= 4
        (folder / SHARD).write_bytes(changed)
        assert verify(folder) == [f"{SHARD}: chunk {place // CHUNK} (bytes from {place // CHUNK * CHUNK}) differs from what was written"]
        assert verify(folder, sums=False) == []


def test_no_manifest_and_half_a_manifest_are_problems(folder):
    data = (folder / "manifest.json").read_bytes()
    (folder / "manifest.json").write_bytes(data[: len(data) // 2])
    assert "manifest.json: 0 bytes" not in verify(folder)[0]
    assert "not JSON" in verify(folder)[0]
    (folder / "manifest.json").unlink()
    assert "manifest.json: No such file" in verify(folder)[0]


def test_boxes_that_do_not_tile_are_a_problem(folder):
    entry = read_manifest(folder).tensors["model/w"]
    rewrite(folder, tensors={"model/w": replace(entry, boxes=entry.boxes[:1])})
    assert verify(folder) == ["model/w: 6 of 12 elements are in no box"]
    rewrite(folder, tensors={"model/w": replace(entry, boxes=(*entry.boxes, entry.boxes[0]))})
    assert verify(folder) == ["model/w: boxes at (0, 0) and (0, 0) overlap"]
    rewrite(folder, tensors={"model/w": replace(entry, boxes=(replace(entry.boxes[0], box=Box((0,), (6,))),))})
    assert "another number of dims" in verify(folder)[0]


def test_a_folder_renamed_by_hand_is_a_problem(folder):
    moved = folder.rename(folder.with_name("step-00000021"))
    assert verify(moved) == ["manifest.json: step 20 in a folder of step 21"]


def test_sizes_are_looked_at_before_any_byte_is_read(folder, monkeypatch):
    (folder / SHARD).unlink()
    monkeypatch.setattr("slurmtrain.store.verify.sums_of", lambda *_: pytest.fail("read"))
    assert verify(folder)


def test_folders_of_a_disk_that_fails_are_problems_not_tracebacks(folder):
    SystemDisk().write(folder / "manifest.json", b"\x00" * 4096)
    assert "not JSON" in verify(folder)[0]
