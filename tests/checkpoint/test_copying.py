"""Copies of checkpoints: the same bytes, whole or not there, whatever happens on the way."""

from __future__ import annotations

import errno
import os
import random

import numpy as np
import pytest

from slurmtrain.aside import aside
from slurmtrain.checkpoint.copying import copy_checkpoint
from slurmtrain.errors import CheckpointError, CorruptCheckpointError, UserError
from slurmtrain.store.manifest import MANIFEST_NAME
from slurmtrain.store.verify import verify
from tests.checkpoint.stored import flip, store
from tests.fakes.syscalls import Cut, FakeSyscalls, Refusal, after_power_failure, assert_nothing_bypassed


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source" / "step-00000007"
    store(folder, 7, {"model/w": np.arange(50_000, dtype=np.float32), "model/b": np.arange(9, dtype=np.float16)}, files=3)
    return folder


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_copy_has_the_same_bytes_and_tells_how_far_it_is(source, tmp_path):
    heard = []
    out = tmp_path / "archive" / "deep" / "step-00000007"
    manifest = copy_checkpoint(source, out, advance=heard.append)
    assert content(out) == content(source)
    assert sum(heard) == manifest.total_bytes
    assert [path.name for path in out.parent.iterdir()] == [out.name]


def test_chunks_that_the_manifest_names_are_compared_each(source, tmp_path):
    """Broken: only the first chunk of a file compared."""
    big = tmp_path / "big" / "step-00000008"
    manifest = store(big, 8, {"model/w": np.zeros(5 << 20, np.float32)})
    (name,) = manifest.files
    flip(big / name, (17 << 20) + 5)
    with pytest.raises(CorruptCheckpointError, match=rf"{name}: chunk 2 \(bytes from 16777216\) differs .*: nothing was copied"):
        copy_checkpoint(big, tmp_path / "out" / "step-00000008")
    assert not (tmp_path / "out").exists()


def test_what_is_missing_short_or_damaged_is_told_before_a_byte_is_copied(source, tmp_path):
    out = tmp_path / "out" / "step-00000007"
    path = source / "rank-00001.h5"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptCheckpointError, match=r"rank-00001\.h5: "):
        copy_checkpoint(source, out)
    path.unlink()
    with pytest.raises(CorruptCheckpointError, match=r"rank-00001\.h5: No such file"):
        copy_checkpoint(source, out)
    flip(source / MANIFEST_NAME, 30)
    with pytest.raises(CheckpointError, match=MANIFEST_NAME):
        copy_checkpoint(source, out)
    assert not out.parent.exists()


def test_a_place_that_is_taken_or_is_no_folder(source, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match="out: is there already"):
        copy_checkpoint(source, tmp_path / "out")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="link: is there already"):
        copy_checkpoint(source, tmp_path / "link")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match=r"file/step: .*choose a folder where you can write"):
        copy_checkpoint(source, tmp_path / "file" / "step")


def test_wherever_it_is_killed_there_is_no_half_and_the_next_copy_works(source, tmp_path):
    """By a kill, and by a power failure: the copy is whole, durable when the call came back, or not there."""
    root = tmp_path / "disk"
    root.mkdir()
    out = root / "archive" / "step-00000007"
    calls = FakeSyscalls(root)
    copy_checkpoint(source, out, calls=calls, threads=1)
    assert_nothing_bypassed(calls.log, root)
    rng = random.Random(5)
    for number in range(calls.count + 1):
        after_power_failure(calls.log.until(number), root, target := tmp_path / f"power-{number}", rng)
        left = target / "archive" / out.name
        assert not left.exists() or content(left) == content(source), number
    assert content(left) == content(source)
    for number in range(1, calls.count + 1):
        there = tmp_path / f"cut-{number}"
        there.mkdir()
        with pytest.raises(Cut):
            copy_checkpoint(source, there / "archive" / out.name, calls=FakeSyscalls(there, cut_at=number, torn=True), threads=1)
        left = there / "archive" / out.name
        if not left.exists():
            copy_checkpoint(source, left)
        assert content(left) == content(source), number


def test_a_disk_that_refuses_is_one_line_and_nothing_is_left(source, tmp_path):
    root = tmp_path / "disk"
    root.mkdir()
    count = FakeSyscalls(root)
    copy_checkpoint(source, root / "whole" / "step-00000007", calls=count, threads=1)
    asked = [name for name, _ in count.asked if name != "settle"]
    assert {"mkdir", "create", "pwrite", "fsync", "close", "rename", "fsync_dir"} == set(asked)
    for number, name in enumerate(asked[:-1], 1):  # the last one makes the rename durable: what was renamed is not taken back
        out = root / f"out-{number}" / "step-00000007"
        with pytest.raises(CheckpointError, match=f"{out}: No space left on device"):
            copy_checkpoint(source, out, calls=FakeSyscalls(refusals=[Refusal(errno.ENOSPC, at=number)]), threads=1)
        assert not out.parent.exists() or list(out.parent.iterdir()) == [], (number, name)


def test_a_full_disk_ends_all_threads(source, tmp_path):
    out = tmp_path / "out" / "step-00000007"
    with pytest.raises(CheckpointError, match="No space left"):
        copy_checkpoint(source, out, calls=FakeSyscalls(room=80_000))
    assert not out.parent.exists()


def test_no_permission_is_the_users_matter(source, tmp_path):
    calls = FakeSyscalls(refusals=[Refusal(errno.EACCES, calls=("mkdir",))])
    with pytest.raises(UserError, match="Permission denied: choose a folder where you can write"):
        copy_checkpoint(source, tmp_path / "out" / "step-00000007", calls=calls)


def test_what_a_killed_copy_left_is_swept(source, tmp_path):
    out = tmp_path / "out" / "step-00000007"
    left = aside(out)
    dead = out.with_name(left.name.replace(f".{os.getpid()}.", f".{2**22 + 7}."))
    dead.mkdir(parents=True)
    (dead / "rank-00000.h5").write_bytes(b"half")
    copy_checkpoint(source, out)
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    assert verify(out) == []
