"""Old checkpoints go, the newest that verifies never does, and a removal that dies half way leaves no half checkpoint listed."""

from __future__ import annotations

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import steps_present
from slurmtrain.store.retention import remove, to_remove
from slurmtrain.store.verify import verify
from tests.store.checkpoints import save


@pytest.mark.parametrize(
    "steps, keep, durable, expected",
    [
        ([], 3, 10, []),
        ([10], 1, 10, []),
        ([30, 10, 20, 40], 2, 40, [10, 20]),
        ([10, 20, 30], 3, 30, []),
        ([10, 20, 30, 40], 1, 20, [10]),  # 30 and 40 did not verify; 20 was saved again after them
        ([10, 20, 100], 2, 20, []),
        ([9, 10, 11], 1, 11, [9, 10]),
    ],
)
def test_which_go(steps, keep, durable, expected):
    assert to_remove(steps, keep, durable) == expected


@given(st.sets(st.integers(0, 100), min_size=1), st.integers(1, 5), st.data())
def test_the_durable_one_and_enough_before_it_stay(steps, keep, data):
    durable = data.draw(st.sampled_from(sorted(steps)))
    left = steps - set(to_remove(steps, keep, durable))
    assert durable in left
    assert {s for s in steps if s > durable} <= left
    before = sorted(s for s in steps if s <= durable)
    assert sorted(s for s in left if s <= durable) == before[-keep:]


def test_removal_leaves_the_others_and_no_trash(tmp_path):
    run = RunDir(tmp_path)
    for step in (10, 20, 30):
        save(run, step)
    assert remove(run, [10, 20]) == []
    assert [p.name for p in run.checkpoints.iterdir()] == ["step-00000030"]
    assert verify(run.checkpoint(30)) == []


def test_a_removal_that_dies_half_way_lists_no_half(tmp_path, monkeypatch):
    run = RunDir(tmp_path)
    for step in (10, 20):
        save(run, step)

    def dies(folder, **_):
        next(folder.glob("*.h5")).unlink()
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", dies)
        assert remove(run, [10]) == [f"{run.checkpoint(10)}: not removed: Input/output error"]
    assert steps_present(run.checkpoints) == [20]
    save(run, 30)
    assert sorted(p.name for p in run.checkpoints.iterdir()) == ["step-00000020", "step-00000030"], "the next save clears the trash"
