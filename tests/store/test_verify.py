"""Every kind of damage to a checkpoint is found, and named (case C48: zero-byte shard, missing file, flipped bit, truncation)."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmtrain.boxes import Box
from slurmtrain.checkpoint.dtypes import carrier
from slurmtrain.errors import CheckpointError, CorruptCheckpointError
from slurmtrain.rundir import RunDir
from slurmtrain.store.manifest import FileSum, Manifest, StoredBox, TensorEntry
from slurmtrain.store.verify import WIDTHS, index_problems, read_manifest, sampled, sum_problems, sums_of, verify
from tests.store.checkpoints import CHUNK, FILES, manifest_of, save, sums

SHARD = "rank-00001.h5"


@pytest.fixture
def folder(tmp_path):
    return save(RunDir(tmp_path), 20)


def rewrite(folder, **changes):
    manifest = replace(read_manifest(folder), **changes)
    (folder / "manifest.json").write_bytes(manifest.to_json())


def resealed(line: bytes) -> bytes:
    """The sum made right again, as by one who changes a manifest on purpose."""
    body = line[: -len(b',"xxh3_64":"0123456789abcdef"}\n')] + b"}"
    return body[:-1] + b',"xxh3_64":"' + xxhash.xxh3_64(body).hexdigest().encode() + b'"}\n'


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_sums_are_xxh3_64_of_chunks(tmp_path, size):
    data = random.Random(size).randbytes(size)
    (tmp_path / "f").write_bytes(data)
    expected = tuple(xxhash.xxh3_64(data[i : i + CHUNK]).hexdigest() for i in range(0, size, CHUNK))
    assert sums_of(tmp_path / "f", CHUNK) == FileSum(size, expected)


@pytest.mark.parametrize("policy", ["full", "sampled", "sizes"])
def test_a_published_checkpoint_has_no_problems(folder, policy):
    assert verify(folder, policy) == []


def test_a_missing_file_is_named(folder):
    (folder / SHARD).unlink()
    assert verify(folder) == [f"{SHARD}: No such file or directory"]


@pytest.mark.parametrize("size", [0, 100])
def test_an_empty_or_truncated_file_is_named_with_both_sizes(folder, size):
    was = (folder / SHARD).stat().st_size
    with open(folder / SHARD, "rb+") as file:
        file.truncate(size)
    assert verify(folder, "sizes") == [f"{SHARD}: {size} bytes, {was} were written"]


def test_what_is_no_file_is_named_and_not_waited_for(folder):
    (folder / SHARD).unlink()
    os.mkfifo(folder / SHARD)
    assert verify(folder) == [f"{SHARD}: not a file"]
    (folder / "manifest.json").rename(folder / "was")
    os.mkfifo(folder / "manifest.json")
    assert verify(folder) == [f"{folder}/manifest.json: not a file"]


def test_a_file_that_may_not_be_read_is_named(folder, monkeypatch):
    def forbids(path, *args, **kwargs):
        if Path(path).name == SHARD:
            raise PermissionError(13, "Permission denied", str(path))
        return open(path, *args, **kwargs)

    monkeypatch.setattr("slurmtrain.store.verify.open", forbids, raising=False)
    assert verify(folder) == [f"{SHARD}: Permission denied"]


def test_any_flipped_bit_is_found_in_its_chunk(folder):
    whole = (folder / SHARD).read_bytes()
    for place in random.Random(0).sample(range(len(whole)), 40):
        changed = bytearray(whole)
        changed[place] ^= 4
        (folder / SHARD).write_bytes(changed)
        chunk = place // CHUNK
        assert verify(folder) == [f"{SHARD}: chunk {chunk} (bytes from {chunk * CHUNK}) differs from what was written"]
        assert verify(folder, "sizes") == []


def test_a_foreign_file_of_the_same_size_is_found(folder):
    size = (folder / SHARD).stat().st_size
    (folder / SHARD).write_bytes((folder / FILES[0]).read_bytes()[:size])
    assert f"{SHARD}: chunk 0 (bytes from 0) differs from what was written" in verify(folder)


@pytest.mark.parametrize("count", [0, 1, 2, 8, 9, 10, 17, 18])
def test_sampled_looks_at_every_eighth_chunk_the_first_and_the_last(tmp_path, count):
    data = random.Random(count).randbytes(count * CHUNK)
    (tmp_path / "f.h5").write_bytes(data)
    manifest = replace(manifest_of(20, {}), files={"f.h5": sums(data)})
    expected = {i for i in range(count) if i % 8 == 0 or i == count - 1}
    assert set(sampled(count, "sampled")) == expected
    found = set()
    for i in range(count):
        changed = bytearray(data)
        changed[i * CHUNK + 7] ^= 1
        (tmp_path / "f.h5").write_bytes(changed)
        assert len(sum_problems(tmp_path, manifest)) == 1
        assert sum_problems(tmp_path, manifest, policy="sizes") == []
        if sum_problems(tmp_path, manifest, ["f.h5"], "sampled"):
            found.add(i)
    assert found == expected


def test_files_are_read_on_many_threads_and_told_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr("slurmtrain.store.verify.SMALL_BYTES", 0)
    data = {f"f{i}.h5": random.Random(i).randbytes(3 * CHUNK) for i in range(9)}
    manifest = replace(manifest_of(20, {}), files={name: sums(one) for name, one in data.items()})
    for name, one in data.items():
        (tmp_path / name).write_bytes(one)
    assert sum_problems(tmp_path, manifest) == []
    for name in ("f7.h5", "f2.h5"):
        (tmp_path / name).write_bytes(bytes(3 * CHUNK))
    (tmp_path / "f4.h5").unlink()
    assert [problem.split(":")[0] for problem in sum_problems(tmp_path, manifest)] == [*["f2.h5"] * 3, "f4.h5", *["f7.h5"] * 3]
    assert sum_problems(tmp_path, manifest, ["f3.h5"]) == []


def test_a_file_that_grew_while_it_was_looked_at_is_named(folder):
    manifest = read_manifest(folder)
    with open(folder / SHARD, "ab") as file:
        file.write(b"x")
    was = manifest.files[SHARD].size
    assert sum_problems(folder, manifest) == [f"{SHARD}: {was + 1} bytes, {was} were written"]


def test_no_manifest_and_half_a_manifest_are_problems(folder):
    data = (folder / "manifest.json").read_bytes()
    (folder / "manifest.json").write_bytes(data[: len(data) // 2])
    assert "not JSON" in verify(folder)[0]
    (folder / "manifest.json").unlink()
    assert "manifest.json: No such file" in verify(folder)[0]
    assert "manifest.json: No such file" in verify(folder / "gone")[0]


def test_boxes_that_do_not_tile_are_a_problem(folder):
    entry = read_manifest(folder).tensors["model/w"]
    rewrite(folder, tensors={"model/w": replace(entry, boxes=entry.boxes[:1])})
    assert verify(folder) == ["model/w: 6 of 12 elements are in no box"]
    rewrite(folder, tensors={"model/w": replace(entry, boxes=(*entry.boxes, replace(entry.boxes[0], at=100)))})
    assert verify(folder) == ["model/w: boxes at (0, 0) and (0, 0) overlap"]
    rewrite(folder, tensors={"model/w": replace(entry, boxes=(replace(entry.boxes[0], box=Box((0,), (6,))),))})
    assert "another number of dims" in verify(folder)[0]


def test_boxes_that_lie_outside_their_file_or_on_each_others_bytes_are_a_problem(folder):
    entry = read_manifest(folder).tensors["model/w"]
    size = read_manifest(folder).files[FILES[0]].size
    first, second = entry.boxes
    rewrite(folder, tensors={"model/w": replace(entry, boxes=(replace(first, at=size - 24), second))})
    assert verify(folder) == []
    rewrite(folder, tensors={"model/w": replace(entry, boxes=(replace(first, at=size - 23), second))})
    assert verify(folder) == [f"model/w: its bytes end at {size + 1} of {FILES[0]}, which has {size}"]
    one = TensorEntry((6,), "float32", (StoredBox(Box((0,), (6,)), FILES[0], "d", None, 16 + 24),))
    rewrite(folder, tensors={"model/w": entry, "model/x": one})
    assert verify(folder) == []
    rewrite(folder, tensors={"model/w": entry, "model/x": replace(one, boxes=(replace(one.boxes[0], at=39),))})
    assert verify(folder) == [f"model/x: byte 39 of {FILES[0]} belongs to model/w"]
    rewrite(folder, tensors={"model/w": replace(entry, dtype="float64")})
    assert verify(folder) == []
    rewrite(folder, tensors={"model/w": replace(entry, dtype="float77")})
    assert verify(folder) == ["model/w: elements of unknown type 'float77'"]


def test_empty_tensors_have_no_bytes(folder):
    entry = read_manifest(folder).tensors["model/w"]
    nothing = TensorEntry((0, 5), "float32", (StoredBox(Box((0, 0), (0, 5)), FILES[0], "d", None, 10**9),))
    rewrite(folder, tensors={"model/w": entry, "model/none": nothing, "model/no boxes": TensorEntry((3, 0), "bool", ())})
    assert verify(folder) == []


@pytest.mark.parametrize("shape", [(1 << 60, 0), (1 << 40, 1 << 40, 0), (0,) * 33])
def test_a_shape_that_no_array_has_is_a_problem(folder, shape):
    entry = read_manifest(folder).tensors["model/w"]
    rewrite(folder, tensors={"model/w": entry, "model/none": TensorEntry(shape, "float32", ())})
    assert verify(folder) == [f"model/none: no array has the shape {shape}"]


def test_a_wrong_entry_of_the_index_is_a_problem_beside_the_others(folder):
    raw = json.loads((folder / "manifest.json").read_bytes())
    raw["tensors"] |= {"model/a": ["float32", [-2], []], "model/b": 5, "model/c": ["float32", [2], []]}
    del raw["xxh3_64"]
    (folder / "manifest.json").write_bytes(resealed(json.dumps(raw).encode()[:-1] + b',"xxh3_64":"0123456789abcdef"}\n'))
    found = verify(folder)
    assert [problem.removeprefix(f"{folder}/manifest.json: ").split(":")[0] for problem in found] == ["model/a", "model/b", "model/c"]


def test_a_count_of_sums_that_is_not_that_of_the_chunks_is_a_problem(folder):
    files = dict(read_manifest(folder).files)
    files[SHARD] = replace(files[SHARD], xxh3_64=files[SHARD].xxh3_64[:-1])
    rewrite(folder, files=files)
    assert verify(folder) == [f"manifest.json: 4 sums for the {files[SHARD].size} bytes of {SHARD}"]


def test_a_folder_renamed_by_hand_is_a_problem(folder):
    moved = folder.rename(folder.with_name("step-00000021"))
    assert verify(moved) == ["manifest.json: step 20 in a folder of step 21"]


def test_sizes_are_looked_at_before_any_byte_is_read(folder, monkeypatch):
    (folder / SHARD).unlink()
    monkeypatch.setattr("slurmtrain.store.verify.sum_problems", lambda *_, **__: pytest.fail("read"))
    assert verify(folder)


def test_a_disk_that_gives_zeros_is_a_problem_not_a_traceback(folder):
    (folder / "manifest.json").write_bytes(b"\x00" * 4096)
    assert "not JSON" in verify(folder)[0]


def test_widths_are_those_of_all_types_that_are_stored():
    with pytest.raises(CheckpointError) as caught:
        carrier("none")
    stored = str(caught.value).rpartition("use one of ")[2].split(", ")
    assert dict(WIDTHS) == {name: carrier(name).itemsize for name in stored}


@settings(max_examples=300)
@given(st.data())
def test_a_manifest_changed_on_purpose_is_refused_or_has_problems_or_says_the_same_of_the_tensors(tmp_path_factory, data):
    """Fuzz under a right sum: nothing but CheckpointError comes out, and what is accepted lies inside its file."""
    line = manifest_of(20, {name: name.encode() * 400 for name in FILES}).to_json()
    changed = bytearray(line)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(1, len(line) - 35))
        changed[place : place + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([b"", b"0", b"9", b"-", b"[", b"]", b'"', b",", b"e", b"\xff"])
        )
    try:
        manifest = Manifest.from_json(resealed(bytes(changed)))
    except CheckpointError:
        return
    if index_problems(Path("step-00000020"), manifest):
        return
    for name in manifest.tensors:
        entry = manifest.tensors[name]
        for one in entry.boxes:
            assert one.at + one.box.volume * WIDTHS[entry.dtype] <= manifest.files[one.file].size
        assert sum(one.box.volume for one in entry.boxes) == Box((0,) * len(entry.shape), entry.shape).volume


RUNS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=8)


@given(RUNS)
def test_boxes_share_a_byte_or_not_as_counting_bytes_says(runs):
    tensors = {
        f"t{i}": TensorEntry((length,), "uint8", (StoredBox(Box((0,), (length,)), "f.h5", "d", None, at),))
        for i, (at, length) in enumerate(runs)
    }
    manifest = replace(manifest_of(20, {}), files={"f.h5": FileSum(64, ("0" * 16,))}, tensors=tensors)
    taken = [byte for at, length in runs for byte in range(at, at + length)]
    fits = len(taken) == len(set(taken)) and all(byte < 64 for byte in taken)
    assert (index_problems(Path("step-00000020"), manifest) == []) == fits


def test_the_index_of_a_thousand_ranks_is_checked_by_looking_at_each_box_once(monkeypatch):
    ranks = [f"rank-{i:05d}.h5" for i in range(1000)]
    boxes = tuple(StoredBox(Box((0, 4 * i), (8, 4)), name, "d", None, 0) for i, name in enumerate(ranks))
    manifest = replace(
        manifest_of(20, {}), files=dict.fromkeys(ranks, FileSum(128, ("0" * 16,))), tensors={"w": TensorEntry((8, 4000), "float32", boxes)}
    )
    monkeypatch.setattr("slurmtrain.boxes.intersect", lambda *_: pytest.fail("pairs are compared"))
    assert index_problems(Path("step-00000020"), manifest) == []
    assert [b.offset[1] - a.offset[1] for a, b in pairwise(one.box for one in boxes)] == [4] * 999


def test_a_corrupt_index_is_a_corrupt_checkpoint(folder):
    (folder / "manifest.json").write_bytes(b"{}")
    with pytest.raises(CorruptCheckpointError, match=r"manifest\.json"):
        read_manifest(folder)
