"""The newest checkpoint that verifies is loaded by all ranks; damaged ones are passed over with the reason (case C48)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from slurmtrain.boxes import Box, Part, whole
from slurmtrain.checkpoint import load
from slurmtrain.checkpoint.group import SoloGroup
from slurmtrain.checkpoint.load import PartReader, find_checkpoint
from slurmtrain.errors import CheckpointError, CorruptCheckpointError
from slurmtrain.rundir import RunDir
from tests.checkpoint.arrays import SHAPES, cut, rows, save_step, values, wrong_tensors
from tests.fakes.thread_group import run_ranks

SHARD = "rank-00001.h5"


def part(name, box=None, shape=None):
    shape = SHAPES[name] if shape is None else shape
    box = whole(shape) if box is None else box
    return Part(name, shape, box, tuple((0, n) for n in box.shape))


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path)
    for step in (10, 20):
        run_ranks(3, lambda group: save_step(run, step, group))  # noqa: B023 run at once
    return run


def damage(kind, folder):
    path = folder / SHARD
    if kind == "missing":
        path.unlink()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "truncated":
        path.write_bytes(path.read_bytes()[:-1])
    elif kind == "flipped bit":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 16
        path.write_bytes(data)
    elif kind == "no manifest":
        (folder / "manifest.json").unlink()


@pytest.mark.parametrize(
    "kind, reason",
    [
        ("missing", "rank-00001.h5: No such file or directory"),
        ("empty", "rank-00001.h5: 0 bytes, "),
        ("truncated", "were written"),
        ("flipped bit", "rank-00001.h5: chunk 0 (bytes from 0) differs from what was written"),
        ("no manifest", "manifest.json: No such file or directory"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_damaged_checkpoint_is_passed_over_and_the_one_before_is_loaded(run, kind, reason, size):
    damage(kind, run.checkpoint(20))
    results = run_ranks(size, lambda group: find_checkpoint(run, group))
    assert len({(found.step, found.passed_over) for found in results}) == 1
    assert results[0].step == 10
    ((step, why),) = results[0].passed_over
    assert step == 20
    assert reason in why
    assert wrong_tensors(results[-1]) == []


def test_no_checkpoint_is_none_on_all_ranks(tmp_path):
    assert run_ranks(3, lambda group: find_checkpoint(RunDir(tmp_path), group)) == [None] * 3


def test_only_damaged_ones_is_an_error_on_all_ranks(run):
    for step in (10, 20):
        damage("flipped bit", run.checkpoint(step))
    errors = run_ranks(2, lambda group: find_checkpoint(run, group))
    assert [type(one) for one in errors] == [CorruptCheckpointError] * 2
    assert "step 20: rank-00001.h5: chunk 0" in str(errors[1])


def test_sums_are_shared_out_over_the_ranks(run, monkeypatch):
    looked, real = [], load.sum_problems
    monkeypatch.setattr(load, "sum_problems", lambda folder, manifest, names: looked.append(list(names)) or real(folder, manifest, names))
    run_ranks(2, lambda group: find_checkpoint(run, group))
    assert sorted(itertools.chain(*looked)) == ["rank-00000.h5", SHARD, "rank-00002.h5"]
    assert len(looked) == 2


@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_any_number_of_ranks_gets_its_rows_of_what_three_saved(run, count):
    found = find_checkpoint(run, SoloGroup())
    with PartReader(found.folder, found.manifest) as reader:
        for name, index in itertools.product(SHAPES, range(count)):
            box = rows(SHAPES[name], index, count)
            if box is not None:
                target = np.zeros(box.shape, np.float32)
                reader.fill(part(name, box), "float32", target)
                assert np.array_equal(target, cut(values(name, 20), box))


def test_columns_across_all_files_into_a_strided_target(run):
    found = find_checkpoint(run, SoloGroup())
    box = Box((100, 200), (800, 7))
    target = np.zeros((7, 800), np.float32).T
    with PartReader(found.folder, found.manifest) as reader:
        reader.fill(part("model/w", box), "float32", target)
    assert np.array_equal(target, values("model/w", 20)[100:900, 200:207])


def test_few_files_stay_open(run, monkeypatch):
    monkeypatch.setattr(load, "OPEN_FILES", 1)
    found = find_checkpoint(run, SoloGroup())
    assert wrong_tensors(found) == []


def test_what_is_wanted_and_not_there_is_named(run):
    found = find_checkpoint(run, SoloGroup())
    where = str(found.folder / "manifest.json")
    with PartReader(found.folder, found.manifest) as reader:
        for one, dtype, message in [
            (part("model/none", shape=(3,)), "float32", f"model/none: not in {where}, which holds 4 tensors"),
            (part("model/norm", shape=(601,)), "float32", f"model/norm: shape (600,) in {where}, (601,) in this model"),
            (part("model/norm"), "bfloat16", f"model/norm: float32 in {where}, bfloat16 in this model"),
        ]:
            with pytest.raises(CheckpointError) as caught:
                reader.fill(one, dtype, np.zeros(one.box.shape, np.float32))
            assert str(caught.value) == message


def test_a_file_that_breaks_after_it_was_verified_names_tensor_and_file(run):
    found = find_checkpoint(run, SoloGroup())
    damage("truncated", found.folder)
    target = np.zeros(SHAPES["model/w"], np.float32)
    with PartReader(found.folder, found.manifest) as reader, pytest.raises(CorruptCheckpointError, match=r"^model/w: .*rank-00001\.h5: "):
        reader.fill(part("model/w"), "float32", target)
