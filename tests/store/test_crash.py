"""A save and its retention, ended at every system call, by a kill or by the power: the old state or the new, and no litter that stays."""

from __future__ import annotations

import errno
import random
import shutil

import pytest

from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import newest_verified, steps_present
from slurmtrain.store.retention import RetentionPolicy, retain
from slurmtrain.store.verify import verify
from tests.fakes.syscalls import Cut, FakeSyscalls, Refusal, after_power_failure, assert_nothing_bypassed, tree
from tests.store.checkpoints import save

SEEDS = 4


def save_and_retain(run, step, attempt, calls):
    save(run, step, attempt, calls=calls)
    return retain(run, RetentionPolicy(keep=2), step, calls=calls)


def begun(path):
    """A run of which the next save of attempt 2 has everything to do: an older attempt's half, trash, a damaged one, one to remove."""
    run = RunDir(path)
    for step in (10, 20, 40, 30):
        save(run, step, calls=FakeSyscalls())
    (run.checkpoint(40) / "rank-00000.h5").write_bytes(b"")
    (run.checkpoint(40)).rename(run.staging(40, 1))
    shutil.copytree(run.checkpoint(10), run.trash(5))
    return run


@pytest.fixture
def whole(tmp_path):
    """A run that nothing disturbed, and its calls."""
    run = begun(tmp_path / "whole")
    calls = FakeSyscalls(run.path)
    assert save_and_retain(run, 40, 2, calls) == []
    assert_nothing_bypassed(calls.log, run.path)
    assert sorted(p.name for p in run.checkpoints.iterdir()) == ["step-00000030", "step-00000040"]
    return run, calls


def judge(run, calls_made, published):
    """What every state must be: what is listed verifies, the newest is the old one or, once published, the new one."""
    steps = steps_present(run.checkpoints)
    assert {step: verify(run.checkpoint(step)) for step in steps} == {step: [] for step in steps}
    found = newest_verified(run.checkpoints)
    assert found is not None
    assert found.passed_over == ()
    assert found.step == (40 if calls_made > published else found.step)
    assert found.step in {30, 40}
    assert {30} <= set(steps), "retention keeps two"
    return found.step


def number_of(calls, name, nth=1):
    """The number of the nth call of this name."""
    return [i + 1 for i, (called, _) in enumerate(calls.asked) if called == name][nth - 1]


def test_cut_at_any_call_it_is_the_old_state_or_the_new_and_the_next_attempt_leaves_no_litter(tmp_path, whole):
    run, calls = whole
    renamed = number_of(calls, "rename", 2)  # after that of the older attempt's half
    assert calls.asked[renamed - 1][1] == run.staging(40, 2)
    for torn in (False, True):
        for number in range(1, calls.count + 1):
            if torn and calls.asked[number - 1][0] != "pwrite":
                continue
            run = begun(tmp_path / f"{number}{torn}")
            with pytest.raises(Cut):
                save_and_retain(run, 40, 2, FakeSyscalls(run.path, cut_at=number, torn=torn))
            now = judge(run, number - 1, renamed - 1)
            assert now == (40 if number > renamed else 30), calls.asked[number - 1]
            save_and_retain(run, now + 10, 3, FakeSyscalls(run.path))
            left = sorted(p.name for p in run.checkpoints.iterdir())
            assert left == [f"step-000000{now}", f"step-000000{now + 10}"], (number, calls.asked[number - 1])


@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(100, marks=pytest.mark.long)])
def test_a_power_failure_after_any_call_leaves_the_old_state_or_the_new(tmp_path, whole, seeds):
    run, calls = whole
    durable = number_of(calls, "fsync_dir", 2)
    assert calls.asked[durable - 1][1] == run.checkpoints
    for number in range(calls.count + 1):
        for seed in range(seeds):
            after = RunDir(tmp_path / f"after-{number}-{seed}")
            after_power_failure(calls.log.until(number), run.path, after.path, random.Random(seeds * number + seed))
            judge(after, number, durable - 1)
            shutil.rmtree(after.path)


def test_a_run_that_began_with_no_folder_loses_no_checkpoint_to_a_power_failure(tmp_path):
    run = RunDir(tmp_path / "new" / "run")
    calls = FakeSyscalls(tmp_path)
    save(run, 10, calls=calls)
    for seed in range(20):
        after_power_failure(calls.log, tmp_path, tmp_path / f"a{seed}", random.Random(seed))
        assert steps_present(tmp_path / f"a{seed}" / "new" / "run" / "checkpoints") == [10]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_refused_at_any_call_nothing_half_is_seen_and_another_save_goes_through(tmp_path, whole, code):
    _, calls = whole
    for number in range(1, calls.count + 1):
        run = begun(tmp_path / f"{number}")
        fault = FakeSyscalls(run.path, refusals=[Refusal(code, at=number)])
        try:
            save_and_retain(run, 40, 2, fault)
        except OSError as error:
            assert error.errno == code  # noqa: PT017 some calls may fail without harm
        assert_nothing_bypassed(fault.log, run.path)
        judge(run, 0, 1)
        save_and_retain(run, 50, 2, FakeSyscalls(run.path))
        assert set(tree(run.checkpoints)) >= {"step-00000050"}
        assert {path.split("/")[0] for path in tree(run.checkpoints)} <= {"step-00000030", "step-00000040", "step-00000050"}
