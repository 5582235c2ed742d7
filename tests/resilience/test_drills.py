"""The table of drills has every fault of the issue's list, and what a deed does it does to its own run alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from slurmtrain.config.job import JobConfig
from slurmtrain.errors import SlurmtrainError, UserError
from slurmtrain.resilience import deed
from slurmtrain.resilience.drills import KINDS, NAMES, default_step, faults_for, kind_of, sets_for
from slurmtrain.resilience.records import Owner
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.causes import CAUSES
from slurmtrain.telemetry.faults import Fault
from slurmtrain.telemetry.heartbeat import SharedHeart, heartbeat_dir, run_memory
from tests.fakes.clock import FakeClock
from tests.store.checkpoints import save as save_checkpoint

ASKED = {
    "rank exits with a code": ["exit"],
    "SIGKILL": ["sigkill"],
    "SIGSTOP": ["sigstop"],
    "exception": ["exception"],
    "host memory exhausted": ["memory"],
    "NaN gradient": ["nan"],
    "one bit flipped in one replica": ["bitflip"],
    "slow rank": ["slow"],
    "node lost": ["node-lost", "node-lost-no-spare"],
    "node hung": ["node-hung"],
    "batch host lost (with and without spares)": ["batch-host-lost", "batch-host-lost-spare"],
    "supervisor killed": ["supervisor-killed"],
    "agent killed": ["agent-killed"],
    "save interrupted": ["save-interrupted"],
    "shard corrupted": ["shard-corrupted"],
    "disk full": ["disk-full"],
    "shared folder gone for 20 s": ["folder-gone"],
    "stalled for 120 s": ["folder-stalled"],
    "two signals 50 ms apart": ["two-signals"],
    "TERM only": ["term"],
    "signal during save and during evaluation": ["signal-in-save", "signal-in-evaluation"],
    "prolog failure": ["prolog-failure"],
    "a hung node that wakes up while the next attempt saves": ["node-wakes"],
    "MPI singleton": ["mpi-singleton"],
    "port clash": ["port-clash"],
    "connection between two ranks reset": ["connection-reset"],
    "two nodes partitioned for 20 s and for ever": ["partition-20s", "partition"],
    "delay and loss on one node": ["network-bad"],
}
"""The list of drills as it was asked for."""


def test_every_fault_that_was_asked_for_is_there_and_no_other():
    assert sorted(NAMES) == sorted(name for names in ASKED.values() for name in names)


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_a_kind_says_what_is_needed_to_do_it_and_to_judge_it(kind):
    assert re.fullmatch(r"[a-z0-9-]+", kind.name)
    assert kind.seen
    assert kind.went
    assert set(kind.seen) <= {*CAUSES, "skip", "straggler", "save_failed", "nothing"}
    needs = {"rank": kind.fault is not None, "signal": bool(kind.signals), "deed": kind.deed is not None, "hand": bool(kind.how)}
    assert [way for way, there in needs.items() if there] == [kind.way]
    for text in kind.sets:
        JobConfig.model_fields[text.partition(".")[0]]


def test_faults_are_of_the_rank_and_step_and_of_the_first_attempt():
    assert faults_for(kind_of("exit"), 3, 40) == (Fault("exit", 3, 40, 1, 7),)
    assert faults_for(kind_of("term"), 3, 40) == ()


def test_a_users_value_wins():
    assert sets_for(kind_of("bitflip"), ("recovery.corruption.every_steps=2",))[-1].endswith("=2")


def test_a_kind_that_there_is_not():
    with pytest.raises(UserError, match="drill list"):
        kind_of("meteor")


@pytest.mark.parametrize(("steps", "every", "when"), [(60, 10, 23), (1000, 100, 233), (10, 5, 5), (100, 0, 50), (1, 0, 1)])
def test_when(steps, every, when):
    assert default_step(steps, every) == when


@pytest.fixture
def sleeper():
    """A process of a run: (pid, environment) by what the test asks for."""
    started = []

    def start(**environ):
        process = subprocess.Popen([sys.executable, "-S", "-c", "import time; print(flush=True); time.sleep(60)"], env=environ, stdout=-1)
        process.stdout.readline()
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def run(tmp_path):
    made = RunDir(tmp_path / "run")
    made.create()
    made.attempt(1).create()
    yield made
    for path in sorted(run_memory(made.path).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def beat(run, rank, pid):
    folder = heartbeat_dir(run.path, 1, "n2")
    folder.mkdir(parents=True)
    SharedHeart(folder, rank, 1, FakeClock(), pid=pid).beat("step", step=3)


def test_the_newest_checkpoint_is_damaged_and_the_rank_killed(run, sleeper):
    save_checkpoint(run, 10)
    save_checkpoint(run, 20)
    rank = sleeper(SLURMTRAIN_RUN=str(run.path))
    beat(run, 1, rank.pid)
    before = {step: {path.name: path.read_bytes() for path in run.checkpoint(step).iterdir()} for step in (10, 20)}
    said = deed.shard(run, {"SLURMTRAIN_NODE": "n2"}, 1, FakeClock())
    assert rank.wait(10) == -9
    after = {step: {path.name: path.read_bytes() for path in run.checkpoint(step).iterdir()} for step in (10, 20)}
    assert after[10] == before[10]
    (changed,) = [name for name in after[20] if after[20][name] != before[20][name]]
    assert changed in said
    assert sum(a != b for a, b in zip(after[20][changed], before[20][changed], strict=True)) == 1


def test_a_rank_is_killed_only_while_a_checkpoint_is_written(run, sleeper, monkeypatch):
    monkeypatch.setattr(deed, "LIMIT_S", 0.1)
    rank = sleeper(SLURMTRAIN_RUN=str(run.path))
    beat(run, 1, rank.pid)
    clock = FakeClock()
    with pytest.raises(SlurmtrainError, match="no checkpoint was begun"):
        deed.save(run, {"SLURMTRAIN_NODE": "n2"}, 1, clock)
    assert rank.poll() is None
    run.staging(20, 1).mkdir()
    assert "step-00000020" in deed.save(run, {"SLURMTRAIN_NODE": "n2"}, 1, clock)
    assert rank.wait(10) == -9


def test_a_process_of_another_run_that_has_the_pid_is_left_alone(run, sleeper):
    other = sleeper(SLURMTRAIN_RUN=str(run.path) + "-2")
    beat(run, 1, other.pid)
    run.staging(20, 1).mkdir()
    with pytest.raises(SlurmtrainError, match="does not run on n2"):
        deed.save(run, {"SLURMTRAIN_NODE": "n2"}, 1, FakeClock())
    assert other.poll() is None


@pytest.mark.parametrize(("theirs", "ended", "killed"), [("7", False, True), ("8", False, False), ("7", True, False)])
def test_the_supervisor_of_this_job_alone(run, sleeper, theirs, ended, killed):
    process = sleeper(SLURM_JOB_ID=theirs)
    run.owner_json.write_bytes(Owner("7", 0, 1, os.uname().nodename, process.pid, 0.0, ended).to_json())
    if killed:
        assert str(process.pid) in deed.supervisor(run, {"SLURM_JOB_ID": "7"})
        assert process.wait(10) == -9
    else:
        with pytest.raises(SlurmtrainError, match="supervisor"):
            deed.supervisor(run, {"SLURM_JOB_ID": "7"})
        assert process.poll() is None


def test_this_nodes_agent_of_this_run_alone(run, sleeper):
    code = "import time; print(flush=True); time.sleep(60)"
    there = [
        subprocess.Popen([sys.executable, "-S", "-c", code, "slurmtrain.resilience.agent", path], env={"SLURMTRAIN_NODE": node}, stdout=-1)
        for path, node in ((str(run.path), "n2"), (str(run.path), "n1"), (str(run.path) + "-2", "n2"))
    ]
    try:
        for process in there:
            process.stdout.readline()
        assert "n2" in deed.agent(run, {"SLURMTRAIN_NODE": "n2"})
        assert there[0].wait(10) == -9
        assert [process.poll() for process in there[1:]] == [None, None]
        with pytest.raises(SlurmtrainError, match="no agent"):
            deed.agent(run, {"SLURMTRAIN_NODE": "n3"})
    finally:
        for process in there:
            process.kill()
            process.wait()
            process.stdout.close()
