"""The newest checkpoint that verifies is found, and each one passed over is told with the reason."""

from __future__ import annotations

import pytest

from slurmtrain.errors import CorruptCheckpointError
from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import newest_durable_step, newest_verified, steps_present
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
    for name in (".step-00000200.a0001.tmp", ".step-00000300.trash", "step-7", "notes"):
        (run.checkpoints / name).mkdir()
    assert steps_present(run.checkpoints) == [9, 10, 100]


def test_no_folder_and_an_empty_one_are_no_checkpoint(tmp_path):
    assert steps_present(tmp_path / "none") == []
    assert newest_verified(tmp_path / "none") is None
    assert newest_verified(tmp_path) is None
    assert newest_durable_step(tmp_path) is None


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


def test_the_cheap_look_passes_over_missing_files_and_manifests(run):
    (run.checkpoint(100) / "rank-00000.h5").write_bytes(b"")
    (run.checkpoint(10) / "manifest.json").write_bytes(b"{}")
    assert newest_durable_step(run.checkpoints) == 9


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_from_nothing(run):
    for step in (9, 10, 100):
        (run.checkpoint(step) / "manifest.json").write_bytes(b"")
    with pytest.raises(CorruptCheckpointError, match=r"no checkpoint verifies \(step 100: .*step 10: .*step 9: "):
        newest_verified(run.checkpoints)
