"""A checkpoint is seen whole or not at all; a stranger's attempt neither publishes nor cleans."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurmtrain.atomic import SystemDisk
from slurmtrain.errors import CheckpointError, OwnershipError
from slurmtrain.rundir import RunDir
from slurmtrain.store.commit import discard, open_staging, publish
from slurmtrain.store.listing import newest_verified, steps_present
from slurmtrain.store.verify import verify
from tests.fakes.disk import FakeDisk
from tests.store.checkpoints import filled, manifest_of, save


def ours():
    return None


def not_ours():
    raise OwnershipError("attempt 2 owns this run")


def staged(run, step, attempt=1):
    staging = open_staging(run, step, attempt, ours)
    files = {"rank-00000.h5": filled("a", step)}
    (staging / "rank-00000.h5").write_bytes(files["rank-00000.h5"])
    return staging, manifest_of(step, files, attempt)


def names(run):
    return sorted(p.name for p in run.checkpoints.iterdir())


def test_everything_is_durable_before_the_rename_that_publishes(tmp_path, monkeypatch):
    run, log = RunDir(tmp_path), []
    staging, manifest = staged(run, 10)
    real_fsync, real_rename = os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda fd: (log.append(("fsync", str(Path(f"/proc/self/fd/{fd}").readlink()))), real_fsync(fd)))
    monkeypatch.setattr(os, "rename", lambda a, b: (log.append(("rename", str(a), str(b))), real_rename(a, b)))
    final = publish(run, staging, manifest, SystemDisk(), ours)
    at = log.index(("rename", str(staging), str(final)))
    before = [entry[1] for entry in log[:at] if entry[0] == "fsync"]
    assert any("manifest.json" in path for path in before)
    assert before[-1] == str(staging), "the folder's names come after the manifest's bytes"
    assert ("fsync", str(run.checkpoints)) in log[at:]


def test_staging_is_no_checkpoint_and_published_is_one(tmp_path):
    run = RunDir(tmp_path)
    staging, manifest = staged(run, 10)
    assert steps_present(run.checkpoints) == []
    publish(run, staging, manifest, SystemDisk(), ours)
    assert names(run) == ["step-00000010"]
    assert verify(run.checkpoint(10)) == []


def test_another_attempts_owner_neither_opens_nor_publishes(tmp_path):
    run = RunDir(tmp_path)
    with pytest.raises(OwnershipError):
        open_staging(run, 10, 1, not_ours)
    assert not run.checkpoints.exists()
    staging, manifest = staged(run, 10)
    with pytest.raises(OwnershipError):
        publish(run, staging, manifest, SystemDisk(), not_ours)
    assert steps_present(run.checkpoints) == []


def test_the_owner_clears_leftovers_of_older_attempts_alone(tmp_path):
    run = RunDir(tmp_path)
    for attempt in (1, 3, 4):
        staged_folder = run.staging(50, attempt)
        staged_folder.mkdir(parents=True)
        (staged_folder / "rank-00000.h5").write_bytes(b"half")
    run.trash(5).mkdir()
    save(run, 60, attempt=3)
    assert names(run) == [".step-00000050.a0004.tmp", "step-00000060"]


@pytest.mark.parametrize("method", ["write", "publish_dir"])
def test_a_full_disk_publishes_nothing_and_the_next_try_works(tmp_path, method):
    run = RunDir(tmp_path)
    staging, manifest = staged(run, 10)
    with pytest.raises(OSError, match="No space"):
        publish(run, staging, manifest, FakeDisk({method: None}), ours)
    assert steps_present(run.checkpoints) == []
    discard(staging)
    assert names(run) == []
    save(run, 10)
    assert steps_present(run.checkpoints) == [10]


def test_a_file_that_did_not_reach_this_folder_is_not_published(tmp_path):
    run = RunDir(tmp_path)
    staging, manifest = staged(run, 10)
    (staging / "rank-00000.h5").unlink()
    with pytest.raises(CheckpointError, match=r"not published: rank-00000\.h5: No such file"):
        publish(run, staging, manifest, SystemDisk(), ours)


def test_boxes_that_do_not_tile_are_not_published(tmp_path):
    run = RunDir(tmp_path)
    staging, manifest = staged(run, 10)
    torn = {name: type(entry)((9, 3), entry.dtype, entry.boxes) for name, entry in manifest.tensors.items()}
    with pytest.raises(CheckpointError, match="21 of 27 elements are in no box"):
        publish(run, staging, type(manifest)(**{**vars(manifest), "tensors": torn}), SystemDisk(), ours)


def test_a_step_that_is_there_and_verifies_is_not_written_again(tmp_path):
    run = RunDir(tmp_path)
    save(run, 10)
    assert open_staging(run, 10, 2, ours) is None


def test_a_step_that_is_there_damaged_is_replaced(tmp_path):
    run = RunDir(tmp_path)
    save(run, 5)
    (save(run, 10) / "rank-00001.h5").write_bytes(b"")
    found = newest_verified(run.checkpoints)
    assert found is not None
    assert found.step == 5
    save(run, 10, attempt=2)
    assert names(run) == ["step-00000005", "step-00000010"]
    found = newest_verified(run.checkpoints)
    assert found is not None
    assert (found.step, found.manifest.attempt, found.passed_over) == (10, 2, ())
