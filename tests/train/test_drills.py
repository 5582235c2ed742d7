"""What ranks do to themselves on purpose: in processes of their own, where it ends them."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest
import torch

from slurmtrain.clock import SystemClock
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.faults import Fault, faults_bytes
from slurmtrain.train.drills import Drills, open_drills
from tests.fakes.clock import FakeClock
from tests.train.small_built import SmallBuilt


def drills(*faults, built=None, clock=None):
    return Drills(faults, (built or SmallBuilt()).parameters, clock or SystemClock())


def _meets(kind, value):
    torch.set_num_threads(1)
    try:
        Drills([Fault(kind, 0, 2, value=value)], SmallBuilt().parameters, SystemClock()).before(2)
    except MemoryError:
        os._exit(77)
    os._exit(0)


@pytest.mark.parametrize(("kind", "value", "code"), [("exit", 7, 7), ("signal", 9, -9), ("signal", 15, -15), ("memory", 1, 77)])
def test_ends(kind, value, code):
    process = multiprocessing.get_context("fork").Process(target=_meets, args=(kind, value))
    process.start()
    process.join(30)
    assert process.exitcode == code


def test_stops_until_somebody_lets_it_go_on():
    process = multiprocessing.get_context("fork").Process(target=_meets, args=("stop", 1))
    process.start()
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    os.kill(process.pid, signal.SIGCONT)
    process.join(30)
    assert process.exitcode == 0


def test_exception_once_at_the_first_step_that_comes():
    one = drills(Fault("exception", 0, 3))
    one.before(2)
    with pytest.raises(RuntimeError, match="on purpose"):
        one.before(4)
    one.before(5)


def test_slow_from_its_step_on_and_asleep_once():
    clock = FakeClock()
    one = drills(Fault("slow", 0, 2, value=0.5), Fault("sleep", 0, 3, value=10.0), clock=clock)
    began, seconds = clock.monotonic(), []
    for step in range(1, 5):
        one.before(step)
        seconds.append(clock.monotonic() - began)
    assert seconds == [0.0, 0.5, 11.0, 11.5]


def test_two_of_a_kind_are_two_steps():
    built = SmallBuilt()
    one = drills(Fault("nan", 0, 2), Fault("nan", 0, 2), built=built)
    bad = []
    for step in range(1, 5):
        for parameter in built.parameters:
            parameter.grad.zero_()
        one.gradients(step)
        bad.append(sum(int(p.grad.isnan().sum()) for p in built.parameters))
    assert bad == [0, 1, 1, 0]


@pytest.mark.parametrize("bit", [0, 23, 31])
def test_one_bit(bit):
    built = SmallBuilt()
    before = [p.tensor.clone().view(torch.int32) for p in built.parameters]
    drills(Fault("bitflip", 0, 1, value=bit), built=built).after(1)
    changed = [(a ^ p.tensor.view(torch.int32)).flatten().tolist() for a, p in zip(before, built.parameters, strict=True)]
    assert [one for some in changed for one in some if one] == [1 << bit if bit < 31 else -(1 << 31)]


def test_who_meets_what(tmp_path):
    run = RunDir(tmp_path)
    parameters, clock = SmallBuilt().parameters, SystemClock()
    assert open_drills(run, 1, 0, parameters, clock) is None
    run.faults_json.write_bytes(faults_bytes((Fault("exception", 1, 3, 2), Fault("exception", 2, 3, 0))))
    assert open_drills(run, 1, 1, parameters, clock) is None
    assert open_drills(run, 2, 0, parameters, clock) is None
    assert open_drills(run, 2, 1, parameters, clock) is not None
    assert open_drills(run, 5, 2, parameters, clock) is not None
