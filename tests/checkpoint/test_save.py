"""All ranks save together; a failure of any is the failure of all, and nothing half is ever seen."""

from __future__ import annotations

import errno
import signal
import time

import pytest

from slurmtrain.checkpoint import save
from slurmtrain.checkpoint.group import SoloGroup
from slurmtrain.checkpoint.h5 import RankFileWriter
from slurmtrain.checkpoint.load import find_checkpoint
from slurmtrain.errors import CheckpointError, OwnershipError
from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import newest_verified, steps_present
from slurmtrain.store.verify import verify
from tests.checkpoint.arrays import save_step, wrong_tensors
from tests.fakes.disk import FakeDisk
from tests.fakes.thread_group import run_ranks


def names(run):
    return sorted(p.name for p in run.checkpoints.iterdir())


@pytest.mark.parametrize("size", [1, 2, 5])
def test_what_all_ranks_save_is_found_and_right(tmp_path, size):
    run = RunDir(tmp_path)
    results = run_ranks(size, lambda group: save_step(run, 10, group))
    assert len({(one.bytes, one.notes) for one in results}) == 1
    found = newest_verified(run.checkpoints)
    assert found is not None
    assert sorted(found.manifest.files) == [f"rank-{rank:05d}.h5" for rank in range(size)]
    assert results[0].bytes == sum((found.folder / name).stat().st_size for name in found.manifest.files)
    assert wrong_tensors(found) == []
    assert (found.manifest.tokens, found.manifest.state) == (80, {"position": 40})


def test_retention_keeps_the_newest(tmp_path):
    run = RunDir(tmp_path)
    for step in (10, 20, 30, 100):
        save_step(run, step, SoloGroup(), keep=2)
    assert names(run) == ["step-00000030", "step-00000100"]


def test_a_step_that_is_there_is_said_and_kept(tmp_path):
    run = RunDir(tmp_path)
    save_step(run, 10, SoloGroup())
    results = run_ranks(2, lambda group: save_step(run, 10, group, attempt=2))
    assert [(one.bytes, one.notes) for one in results] == [(0, ("step 10 is there already and verifies",))] * 2
    assert newest_verified(run.checkpoints).manifest.attempt == 1


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_full_disk_on_one_rank_is_the_same_error_on_all_and_soon(tmp_path, monkeypatch, failing):
    run, real = RunDir(tmp_path), RankFileWriter.add
    run_ranks(3, lambda group: save_step(run, 10, group))

    def add(writer, *args):
        if writer.path.name == f"rank-{failing:05d}.h5":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(writer, *args)

    with monkeypatch.context() as patch:
        patch.setattr(RankFileWriter, "add", add)
        start = time.monotonic()
        errors = run_ranks(3, lambda group: save_step(run, 20, group))
    assert time.monotonic() - start < 10
    assert [type(one) for one in errors] == [CheckpointError] * 3
    where = run.staging(20, 1) / f"rank-{failing:05d}.h5"
    assert {str(one) for one in errors} == {f"checkpoint of step 20 not saved: rank {failing}: {where}: No space left on device"}
    assert names(run) == ["step-00000010"]
    run_ranks(3, lambda group: save_step(run, 20, group))
    assert names(run) == ["step-00000010", "step-00000020"]


@pytest.mark.parametrize("method", ["write", "publish_dir"])
def test_a_disk_that_refuses_to_publish_is_the_same_error_on_all(tmp_path, method):
    run = RunDir(tmp_path)
    errors = run_ranks(2, lambda group: save_step(run, 10, group, disk=FakeDisk({method: None})))
    assert [type(one) for one in errors] == [CheckpointError] * 2
    assert len({str(one) for one in errors}) == 1
    assert str(errors[1]).startswith("checkpoint of step 10 not saved: No space left on device: ")
    assert names(run) == []


def test_trouble_with_old_checkpoints_is_told_and_does_not_fail_the_save(tmp_path, monkeypatch):
    run = RunDir(tmp_path)
    save_step(run, 10, SoloGroup())
    monkeypatch.setattr(save, "remove", lambda *_: ["step 10: not removed: Permission denied"])
    assert save_step(run, 20, SoloGroup(), keep=1).notes == ("step 10: not removed: Permission denied",)


def test_an_attempt_that_lost_the_run_raises_on_all_ranks_and_publishes_nothing(tmp_path):
    run, calls = RunDir(tmp_path), []

    def taken_over_during_the_save():
        calls.append(1)
        if len(calls) > 1:
            raise OwnershipError("attempt 3 owns this run")

    errors = run_ranks(2, lambda group: save_step(run, 10, group, attempt=2, owner_check=taken_over_during_the_save))
    assert [(type(one), str(one)) for one in errors] == [(OwnershipError, "attempt 3 owns this run")] * 2
    assert len(calls) == 2
    assert names(run) == []


def test_ranks_that_disagree_on_a_tensor_are_refused(tmp_path, monkeypatch):
    run, real = RunDir(tmp_path), save.write_rank_file

    def write(staging, rank, pieces):
        changed = [type(p)(p.name, (9, 9), p.box, p.dtype, p.array) if rank == 1 and p.name == "model/norm" else p for p in pieces]
        return real(staging, rank, changed)

    monkeypatch.setattr(save, "write_rank_file", write)
    errors = run_ranks(2, lambda group: save_step(run, 10, group))
    assert "model/norm: ((9, 9), 'float32') on rank 1, ((600,), 'float32') on a lower rank" in str(errors[1])
    assert names(run) == []


def test_fifty_signals_during_saves_harm_nothing(tmp_path):
    """Case C20: a handler that only counts runs all through the saves (system calls are interrupted); all checkpoints are right."""
    run, seen, step = RunDir(tmp_path), [], 0
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.0007)
    try:
        while len(seen) < 50 or step < 30:
            step += 10
            save_step(run, step, SoloGroup(), keep=100)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    steps = steps_present(run.checkpoints)
    assert steps == list(range(10, step + 1, 10))
    assert [verify(run.checkpoint(one)) for one in steps] == [[]] * len(steps)
    assert wrong_tensors(find_checkpoint(run, SoloGroup())) == []
