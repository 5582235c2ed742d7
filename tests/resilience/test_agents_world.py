"""Supervisors, agents and ranks as processes of this machine: who is gone is noticed, and nothing stays behind."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.heartbeat import run_memory
from slurmtrain.telemetry.reader import read_events
from tests.fixtures_slurm import ROOT, clean_environ
from tests.resilience.runs import make_run, site_of

TIMES = {"collective_timeout_s": 60, "start_timeout_s": 60, "node_check_timeout_s": 60, "exit_grace_s": 3, "supervisor_silence_s": 4}


def processes_of(run: RunDir) -> list[str]:
    """Command lines of what carries the run's mark: agents, ranks, and what they started."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SLURMTRAIN_RUN") == str(run.path) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except (psutil.Error, OSError):
            continue
    return found


def until(happened: Callable[[], object], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not happened():
        assert time.monotonic() < deadline, "too late"
        time.sleep(0.1)


def steps_of(run: RunDir) -> int:
    return max((event.fields["step"] for event in read_events(run.events) if event.kind == "step"), default=0)


def test_a_supervisor_that_is_killed_leaves_nothing_behind_within_a_minute(tmp_path: Path):
    """Its ranks would train on for ever: nobody is there to start it again."""
    behaviour = {"steps": 100_000, "step_s": 0.1, "save_every": 100_000}
    run = make_run(tmp_path / "run", gpus=1, behaviour=behaviour, site=site_of("mpiexec", 1, timeouts=TIMES))
    with open(tmp_path / "out", "wb") as out:
        argv = [sys.executable, "-u", "-m", "tests.resilience.batch", str(run.path)]
        supervisor = subprocess.Popen(argv, cwd=ROOT, env=clean_environ(), stdout=out, stderr=out)
    try:
        until(lambda: steps_of(run) >= 2, 60)
        agents = [line for line in processes_of(run) if "slurmtrain.resilience.agent" in line]
        assert len(agents) == 2
        assert len([line for line in processes_of(run) if "tiny.py" in line]) >= 2
        until(run_memory(run.path).exists, 10)
    finally:
        supervisor.kill()
        supervisor.wait()
    until(lambda: not processes_of(run), 40)
    assert not run_memory(run.path).exists()
