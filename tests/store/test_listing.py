"""The newest checkpoint that verifies is found, and each one passed over is told with the reason."""

from __future__ import annotations

import shutil

import pytest

from slurmtrain.errors import CheckpointError, CorruptCheckpointError
from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import folders_present, newest_durable_step, newest_verified, steps_present, summary
from slurmtrain.store.verify import read_manifest, sum_problems
from tests.store.checkpoints import save


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path)
    for step in (10, 9, 100):
        save(run, step)
    return run


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_steps_are_numbers_not_text_and_other_names_are_no_checkpoints(run):
    for name in (".step-00000200.a0001.tmp", ".step-00000300.trash", "step-7", "notes", ".leases", "step-00000400.aside-0001"):
        (run.checkpoints / name).mkdir()
    assert steps_present(run.checkpoints) == [9, 10, 100]
    assert folders_present(run.checkpoints) == [(step, run.checkpoint(step)) for step in (100, 10, 9)]


def test_no_folder_an_empty_one_and_a_file_are_no_checkpoint(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "none", tmp_path, tmp_path / "file"):
        assert steps_present(path) == []
        assert newest_verified(path) is None
        assert newest_durable_step(path) is None


def test_the_newest_is_found(run):
    found = newest_verified(run.checkpoints)
    assert found is not None
    assert (found.step, found.folder, found.manifest.tokens, found.passed_over) == (100, run.checkpoint(100), 1000, ())


def test_damaged_ones_are_passed_over_with_the_reason(run):
    flip(run.checkpoint(100) / "rank-00000.h5", 2500)
    (run.checkpoint(10) / "rank-00001.h5").unlink()
    found = newest_verified(run.checkpoints)
    assert found is not None
    assert found.step == 9
    assert found.passed_over == (
        (100, "rank-00000.h5: chunk 2 (bytes from 2000) differs from what was written"),
        (10, "rank-00001.h5: No such file or directory"),
    )
    assert newest_durable_step(run.checkpoints) == 100, "the cheap look reads no bytes"


def test_the_check_is_the_callers_and_sees_whole_indexes_alone(run):
    (run.checkpoint(100) / "rank-00000.h5").write_bytes(b"")
    seen = []

    def check(folder, manifest):
        seen.append((folder, manifest.step))
        if manifest.step == 10:
            raise CheckpointError("rank 3: lost")
        return []

    found = newest_verified(run.checkpoints, check)
    assert found is not None
    assert seen == [(run.checkpoint(10), 10), (run.checkpoint(9), 9)]
    assert [step for step, _ in found.passed_over] == [100, 10]
    assert found.passed_over[1][1] == "rank 3: lost"


def test_the_cheap_look_passes_over_missing_files_and_manifests(run):
    (run.checkpoint(100) / "rank-00000.h5").write_bytes(b"")
    (run.checkpoint(10) / "manifest.json").write_bytes(b"{}")
    assert newest_durable_step(run.checkpoints) == 9


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_from_nothing(run):
    for step in (9, 10, 100):
        (run.checkpoint(step) / "manifest.json").write_bytes(b"")
    with pytest.raises(CorruptCheckpointError, match=r"no checkpoint verifies: mend one.* \(step 100: .*step 10: .*step 9: "):
        newest_verified(run.checkpoints)


def test_a_run_that_trains_on_while_one_looks_is_looked_at_again(run, monkeypatch):
    """All that were listed go, newer ones come."""
    listed = []

    def slow(folder):
        listed.append(folder)
        if folder == run.checkpoint(100):
            save(run, 110)
            for step in (9, 10, 100):
                shutil.rmtree(run.checkpoint(step))
        return read_manifest(folder)

    monkeypatch.setattr("slurmtrain.store.listing.read_manifest", slow)
    found = newest_verified(run.checkpoints)
    assert found is not None
    assert (found.step, found.passed_over) == (110, ())
    assert listed == [run.checkpoint(step) for step in (100, 10, 9, 110)]


def test_one_that_goes_while_its_bytes_are_read_is_not_called_damaged(run):
    def check(folder, manifest):
        if manifest.step == 100:
            shutil.rmtree(folder)
        return sum_problems(folder, manifest)

    found = newest_verified(run.checkpoints, check)
    assert found is not None
    assert (found.step, found.passed_over) == (10, ())


def test_checkpoints_that_always_go_are_no_reason_to_start_from_nothing(run):
    def check(folder, manifest):
        save(run, manifest.step + 1000)
        shutil.rmtree(folder)
        return sum_problems(folder, manifest)

    with pytest.raises(CheckpointError, match="went while they were looked at: try again") as caught:
        newest_verified(run.checkpoints, check)
    assert not isinstance(caught.value, CorruptCheckpointError)


def test_a_summary_is_the_first_and_how_many_more():
    assert summary(["a"]) == "a"
    assert summary(["a", "b", "c"]) == "a (and 2 more)"
