"""The fake launcher keeps the contract, and does what a test's script says."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from slurmtrain.steps.launcher import StepSpec
from tests.fakes.steps import KILLED, FakeLauncher
from tests.steps.conformance import LauncherConformance


class TestFakeLauncher(LauncherConformance):
    @pytest.fixture
    def launcher(self):
        return FakeLauncher()

    @pytest.fixture
    def missing(self):
        return FakeLauncher(missing=True)


def spec(folder: Path) -> StepSpec:
    return StepSpec(("python",), ("n1",), 1, folder / "node-%n.log")


def test_scripts_answer_start_after_start(tmp_path):
    def first(run):
        run.write("log\n")
        run.say("srun: error: n1: task 0: Exited with exit code 7")
        return 1

    launcher = FakeLauncher([first, lambda run: run.number])
    steps = [launcher.start(spec(tmp_path)) for _ in range(3)]
    assert [step.wait(5) for step in steps] == [1, 2, 3]
    assert "exit code 7" in steps[0].words()
    assert (tmp_path / "node-000.log").read_text() == "log\n"
    assert len(launcher.specs) == 3


def test_a_script_hears_that_it_is_to_end(tmp_path):
    step = FakeLauncher([lambda run: 143 * run.ending.wait(20)]).start(spec(tmp_path))
    assert step.poll() is None
    step.end(5)
    assert step.poll() == 143


def test_a_script_that_does_not_leave_is_killed(tmp_path):
    leave = threading.Event()
    step = FakeLauncher([lambda _run: int(leave.wait(20))]).start(spec(tmp_path))
    step.end(0.05)
    assert step.poll() == KILLED
    leave.set()


def test_a_fault_of_the_script_is_a_step_that_failed(tmp_path):
    step = FakeLauncher([lambda _run: 1 // 0]).start(spec(tmp_path))
    assert step.wait(5) == 1
    assert "ZeroDivisionError" in step.words()
