"""C50: a signal that comes before anything was trained, in a long evaluation or in the first steps, is heard within a pass and saved."""

from __future__ import annotations

import os
import signal
import time

import pytest

from slurmtrain.store.listing import steps_present
from slurmtrain.train.loop import Ending
from slurmtrain.train.stopping import StopFlag, install_handlers
from tests.train.runs import make_data, make_run
from tests.train.solo import solo_loop, solo_world
from tests.train.test_loop_evaluation import evaluated, job_with

PASS_S = 0.2


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    with solo_world(tmp_path_factory.mktemp("group")):
        yield make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def flag():
    made = StopFlag()
    restore = install_handlers(made)
    yield made
    restore()


def signalled(inner):
    """A pass that takes a while, and in which the notice of the job's end comes."""

    def made(*args):
        time.sleep(PASS_S)
        os.kill(os.getpid(), signal.SIGUSR2)
        return inner(*args)

    return made


@pytest.mark.parametrize("first", [True, False], ids=["before the first step", "after the second"])
def test_in_an_evaluation_of_many_passes(data, tmp_path, flag, first):
    job = job_with(data, training={"micro_batch": 1}, **evaluated(data, first=first, batches=50))
    run = make_run(tmp_path / "run", job)
    session, loop = solo_loop(run, 1, flag)
    session.built.runner.evaluate = signalled(session.built.runner.evaluate)
    began = time.monotonic()
    step = 0 if first else 2
    assert loop.run() == Ending("stopped", step, "requeue")
    assert time.monotonic() - began < 20 * PASS_S, "the rest of the evaluation was waited for"
    assert steps_present(run.run.checkpoints) == [step]


def test_in_the_first_step_of_the_warm_up(data, tmp_path, flag):
    run = make_run(tmp_path / "run", job_with(data, optimizer={"lr": 1e-2, "warmup_steps": 5}))
    session, loop = solo_loop(run, 1, flag)
    session.built.runner.train = signalled(session.built.runner.train)
    assert loop.run() == Ending("stopped", 1, "requeue")
    assert steps_present(run.run.checkpoints) == [1]
    assert solo_loop(run, 2)[1].run().kind == "finished"
