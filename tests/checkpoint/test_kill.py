"""Killed with -9 in the middle of saves, fifty times: there is always a checkpoint that verifies, and the next attempt resumes.

Half of the trials die at a file operation chosen by number (each one that a save makes is a candidate), half after a random time,
which also falls into HDF5's writes and fsyncs, of which Python sees nothing.
"""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from slurmtrain.rundir import RunDir, is_trash, staging_attempt
from slurmtrain.store.listing import newest_verified, steps_present
from slurmtrain.store.verify import verify
from tests.checkpoint.kill_driver import Program

TRIALS = 50


@pytest.fixture
def writer():
    writer = Program()
    yield writer
    writer.close()


def trial(writer, run, attempt, chance, save_s) -> tuple[int, int, int]:
    """One attempt that is killed: (step it resumed from, last step it said was durable, exit code)."""
    by_number = attempt % 2 == 0
    writer.order(run=str(run.path), attempt=attempt, steps=1000, die_at=chance.randrange(60) if by_number else None)
    word, pid = writer.hear()
    assert word == "pid"
    child = os.pidfd_open(pid)  # a handle of this very process: no number that may be another's, or -1, is ever signalled
    try:
        start, done, code = follow(writer, child, 0 if by_number else chance.randrange(1, 3), chance.random() * save_s)
    finally:
        os.close(child)
    return start, done, code


def follow(writer, child: int, kill_in: int, after_s: float) -> tuple[int, int, int]:
    """Hear a child out; kill it that long after the begin of its `kill_in`-th save (0: it kills itself)."""
    start = done = -1
    while True:
        word, number = writer.hear()
        if word == "from":
            start = done = number
        elif word == "begin":
            kill_in -= 1
            if kill_in == 0:
                time.sleep(after_s)
                signal.pidfd_send_signal(child, signal.SIGKILL)
        elif word == "done":
            done = number
        elif word == "ended":
            return start, done, number


def duration_of_a_save(writer, run) -> float:
    writer.order(run=str(run.path), attempt=1, steps=4, die_at=None)
    start = time.monotonic()
    while writer.hear()[0] != "ended":
        pass
    return (time.monotonic() - start) / 4


def test_killed_fifty_times_there_is_always_a_checkpoint_that_verifies(tmp_path, writer):
    run, chance = RunDir(tmp_path / "run"), random.Random(20)
    run.path.mkdir()
    save_s = duration_of_a_save(writer, run)
    durable, in_staging, in_removal = 40, 0, 0
    for attempt in range(2, TRIALS + 2):
        start, done, code = trial(writer, run, attempt, chance, save_s)
        assert code == -signal.SIGKILL
        assert start in {-1, durable}, "resumed from another step than the newest durable one"
        assert [verify(run.checkpoint(step)) for step in steps_present(run.checkpoints)].count([]) == len(steps_present(run.checkpoints))
        found = newest_verified(run.checkpoints)
        assert found is not None
        assert found.step >= max(done, durable), "a step that was said to be durable is gone"
        assert found.passed_over == ()
        durable = found.step
        names = [path.name for path in run.checkpoints.iterdir()]
        in_staging += any(staging_attempt(name) == attempt for name in names)
        in_removal += any(is_trash(name) for name in names)
    assert in_staging >= 15, "too few kills fell into a save"
    assert in_removal >= 1, "no kill fell into the removal of an old checkpoint"
    writer.order(run=str(run.path), attempt=99, steps=1, die_at=None)
    while (heard := writer.hear())[0] != "ended":
        pass
    assert heard == ("ended", 0)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [f"step-{durable:08d}", f"step-{durable + 10:08d}"], (
        "leftovers are cleared"
    )
