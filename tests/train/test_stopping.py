"""The flag: set by signals and by rank 0's watcher, summed over the world, one reason for all."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from slurmtrain.clock import SystemClock
from slurmtrain.resilience.records import Owner
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.stopfile import stop_bytes
from slurmtrain.train.stopping import REASONS, Heard, StopFlag, Watcher, answer_request, heard, install_handlers


@pytest.fixture
def handlers():
    flag = StopFlag()
    restore = install_handlers(flag)
    yield flag
    restore()


@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGUSR1, "requeue"), (signal.SIGUSR2, "requeue"), (signal.SIGTERM, "requeue"), (signal.SIGINT, "interrupt")],
)
def test_a_signal_sets_the_flag_and_nothing_else(handlers, number, reason):
    os.kill(os.getpid(), number)
    os.kill(os.getpid(), number)
    assert handlers.given == {reason}
    assert not handlers.disowned


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGUSR1)
    install_handlers(StopFlag())()
    assert signal.getsignal(signal.SIGUSR1) == before


@pytest.mark.parametrize(
    ("given", "reason"),
    [((), None), (("requeue",), "requeue"), (("requeue", "stop"), "stop"), (("interrupt", "requeue"), "interrupt"), (REASONS, "stop")],
)
def test_a_person_outweighs_slurm(given, reason):
    flag = StopFlag()
    flag.given.update(given)
    other = StopFlag()
    sums = [a + b for a, b in zip(flag.one_hot(), other.one_hot(), strict=True)]
    assert heard(sums) == Heard(stop=reason)


@pytest.mark.parametrize("name", ["disowned", "due", "broken"])
def test_what_one_rank_knows_all_ranks_hear(name):
    flag, others = StopFlag(), [StopFlag(), StopFlag()]
    setattr(flag, name, True)
    sums = [sum(column) for column in zip(*(one.one_hot() for one in [flag, *others]), strict=True)]
    assert len(sums) == StopFlag.WIDTH
    assert heard(sums) == Heard(**{name: True})


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "run")
    run.create()
    run.attempt(2).create()
    return run


def own(run, attempt, *, ended=False):
    run.owner_json.write_bytes(Owner("12", 0, attempt, "n1", 1, 0.0, ended).to_json())


def test_watcher_sees_the_stop_file_and_a_new_owner(run):
    flag = StopFlag()
    watcher = Watcher(run, 2, flag, SystemClock())
    watcher.look()  # no owner at all: a run by hand
    own(run, 2)
    watcher.look()
    assert not flag.given
    assert not flag.disowned
    run.attempt(1).create()
    run.attempt(1).stop.write_bytes(stop_bytes("stop"))  # another attempt's
    watcher.look()
    assert not flag.given
    run.attempt(2).stop.write_bytes(stop_bytes("interrupt"))
    watcher.look()
    assert flag.given == {"interrupt"}
    own(run, 3)
    watcher.look()
    assert flag.disowned


def touch(path, t):
    path.touch()
    os.utime(path, (t, t))


def test_a_save_that_a_person_asks_for_is_asked_once_and_answered_when_it_has_ended(run):
    """Touched again while that save is under way: another one, of what was trained since."""
    flag = StopFlag()
    watcher = Watcher(run, 2, flag, SystemClock())
    watcher.look()
    assert not flag.requested
    touch(run.save_request, 1000)
    watcher.look()
    assert heard(flag.one_hot()) == Heard(request=True)
    flag.served = served = flag.request
    watcher.look()
    assert not flag.requested, "it is being saved"
    touch(run.save_request, 2000)
    answer_request(run, served)
    assert run.save_request.exists()
    watcher.look()
    assert flag.requested
    answer_request(run, flag.request)
    answer_request(run, flag.request)
    assert not run.save_request.exists()


class Looked(StopFlag):
    """Tells when it is set."""

    def __init__(self):
        super().__init__()
        self.seen = threading.Event()
        outer = self

        class Given(set):
            def add(self, reason):
                super().add(reason)
                outer.seen.set()

        self.given = Given()


def test_watcher_looks_by_itself_until_it_is_ended(run):
    flag = Looked()
    watcher = Watcher(run, 2, flag, SystemClock(), poll_s=0.01)
    watcher.start()
    run.attempt(2).stop.write_bytes(stop_bytes("requeue"))
    assert flag.seen.wait(10)
    watcher.end()
    assert not watcher._thread.is_alive()
