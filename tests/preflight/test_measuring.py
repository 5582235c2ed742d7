"""The step of the probes: started, measured by, and ended, whatever happens; with real processes in the long test."""

from __future__ import annotations

import sys
import time

import pytest

from slurmtrain.clock import SystemClock
from slurmtrain.config.site import SiteConfig
from slurmtrain.errors import LaunchError
from slurmtrain.preflight.baseline import Baseline
from slurmtrain.preflight.measuring import END_S, measure_on, site_baseline
from slurmtrain.preflight.request import Request
from slurmtrain.steps.launcher import StepSpec
from tests.fakes.steps import FakeLauncher

NODES = ("n1", "n2")


def request(tmp_path, **preflight) -> Request:
    fabric = {"kind": "loopback", "rendezvous_interface": "lo"}
    site = SiteConfig.model_validate({"name": "t", "device": "cpu", "node": {"gpus": 4}, "fabric": fabric, "preflight": preflight})
    return Request(0.0, "", "", "", (str(tmp_path),), site, gpus_per_node=4)


def measure(tmp_path, launcher, wanted=None, **more):
    base = StepSpec((sys.executable, "-m", "other"), NODES, 1, tmp_path / "check-%n.log", cpus_per_task=4, environment={"A": "1"})
    return measure_on(launcher, base, wanted or request(tmp_path), Baseline(), SystemClock(), lambda words: None, **more)


def test_a_step_that_ends_before_any_probe_reports_is_an_error_with_its_words(tmp_path):
    def refuse(run) -> int:
        run.say("srun: error: Unable to create step: Invalid node name specified")
        return 1

    with pytest.raises(LaunchError, match=r"ended too early: .*Invalid node name specified"):
        measure(tmp_path, FakeLauncher([refuse]))
    with pytest.raises(LaunchError):
        measure(tmp_path, FakeLauncher(missing=True))


def test_one_task_for_each_probe_with_its_address_and_a_word_that_no_other_has(tmp_path):
    launcher = FakeLauncher([lambda run: 1])
    for _ in range(2):
        with pytest.raises(LaunchError):
            measure(tmp_path, launcher)
    one, two = launcher.specs
    assert one.command[:3] == (sys.executable, "-m", "slurmtrain.runtime.probe")
    assert one.command[3].startswith("127.0.0.1:")
    assert (one.nodes, one.tasks_per_node, one.cpus_per_task, one.mpi, one.output.name) == (NODES, 1, 4, None, "probe-%n.log")
    assert one.options == ("--no-kill",), "a node that Slurm gives up does not end the step of the others"
    assert one.environment["A"] == "1"
    assert one.environment["SLURMTRAIN_PROBE_TOKEN"] != two.environment["SLURMTRAIN_PROBE_TOKEN"]


def test_who_calls_has_the_probes_ended_at_once(tmp_path):
    launcher, calls = FakeLauncher([lambda run: run.killed.wait(30) and 1]), []
    began = time.monotonic()
    result = measure(tmp_path, launcher, called=lambda: calls.append(1) or len(calls) > 3)
    assert result.interrupted
    assert launcher.steps[0].run.killed.is_set()
    assert time.monotonic() - began < END_S


def test_a_baseline_that_cannot_be_read_is_said(tmp_path):
    (tmp_path / "t.baseline.json").write_text("{")
    said: list[str] = []
    found = site_baseline(request(tmp_path), {"SLURMTRAIN_SITE_PATH": str(tmp_path)}, said.append)
    assert found.rows == ()
    assert "t.baseline.json" in said[0]


@pytest.mark.slow
@pytest.mark.long
def test_real_probes_of_two_nodes_measure_and_leave(tmp_path):
    launcher = FakeLauncher()
    base = {"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"}
    spec = StepSpec((sys.executable,), NODES, 1, tmp_path / "check-%n.log", environment=base)
    wanted = request(tmp_path, pairs_s=20)
    result = measure_on(launcher, spec, wanted, Baseline(), SystemClock(), lambda words: None)
    assert result.findings == ()
    assert result.untested == ()
    wanted_figures = {"matmul_tflops", "world_reduce_gb_s", "pair_gb_s", "write_mb_s", "read_mb_s"}
    assert {node: set(own) for node, own in result.figures.items()} == dict.fromkeys(NODES, wanted_figures)
    assert launcher.steps[0].poll() == 0
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".slurmtrain-probe")]
