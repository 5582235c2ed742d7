"""Where ranks stand: real processes that sleep, hold the interpreter, are stopped, or do not listen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurmtrain.clock import SystemClock
from slurmtrain.resilience.sights import Processes
from slurmtrain.resilience.stacks import summary, take_stacks
from slurmtrain.rundir import RunDir
from slurmtrain.shell import SystemShell
from slurmtrain.telemetry.heartbeat import SharedHeart, heartbeat_dir
from slurmtrain.telemetry.stackdump import STACK_SIGNAL
from tests.mpi_world import ROOT, clean_environment

STANDING = Path(__file__).with_name("standing.py")


def line_of(call: str) -> int:
    """Of the line in standing.py."""
    return next(number for number, line in enumerate(STANDING.read_text().splitlines(), 1) if call in line and "# here" in line)


@pytest.fixture
def ranks(tmp_path):
    """Starts ranks of node n1 by how they stand; their numbers follow one another."""
    started: list[subprocess.Popen[str]] = []

    def start(*how: str) -> list[subprocess.Popen[str]]:
        for number, one in enumerate(how, len(started)):
            env = clean_environment({"SLURMTRAIN_NODE": "n1", "PMI_RANK": str(number), "PYTHONPATH": str(ROOT)})
            argv = [sys.executable, str(STANDING), str(tmp_path / "run"), str(tmp_path / "memory"), one]
            started.append(subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True))
        for process in started:
            assert process.stdout.readline() == "stands\n"
        return started

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def run(tmp_path) -> RunDir:
    found = RunDir(tmp_path / "run")
    found.create()
    found.attempt(1).create()
    return found


def take(run: RunDir) -> str:
    state = Processes().state
    return take_stacks(run, 1, "n1", clock=SystemClock(), shell=SystemShell(), state=state, memory=run.path.parent / "memory")


def test_each_rank_is_found_where_it_stands(run, ranks, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")  # no py-spy
    _, _, stopped = ranks("sleep", "lock", "sleep")
    stopped.send_signal(signal.SIGSTOP)
    wait_for_stop(stopped.pid)
    began = time.monotonic()
    line = take(run)
    assert time.monotonic() - began < 5
    assert line.split("; ") == [
        f"rank 0: step, stand_still in standing.py:{line_of('time.sleep')}",
        f"rank 1: step, hold_the_interpreter in standing.py:{line_of('itertools')}",
        "rank 2: step, its process is stopped",
    ]
    text = run.attempt(1).stack(1).read_text()
    assert text.startswith("rank 1 on n1: step, hold_the_interpreter")
    assert f'File "{STANDING}", line {line_of("itertools")} in hold_the_interpreter' in text
    assert run.attempt(1).stack(2).read_text().startswith("rank 2 on n1: step, its process is stopped")


def wait_for_stop(pid: int) -> None:
    limit = time.monotonic() + 10
    while "T" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]:
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_a_second_answer_does_not_hold_the_first(run, ranks, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    ranks("sleep")
    take(run)
    first = run.attempt(1).stack(0).read_text()
    take(run)
    assert run.attempt(1).stack(0).read_text().count("stand_still in standing.py") == first.count("stand_still in standing.py") == 1


def test_a_shared_folder_that_does_not_answer_costs_a_moment(run, ranks, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("slurmtrain.resilience.stacks.COPY_S", 0.3)
    ranks("sleep")
    run.attempt(1).stacks_dir.mkdir()
    os.mkfifo(run.attempt(1).stack(0))  # whoever writes there waits for a reader
    began = time.monotonic()
    line = take(run)
    assert time.monotonic() - began < 4
    assert line.startswith("rank 0: step, stand_still")
    assert line.endswith("(the shared folder does not take them)")


def test_the_signal_leaves_processes_alone_that_do_not_listen(run):
    """A rank that beats, whose stacks nobody can ask for (it has not come so far, or another program runs in its place)."""
    folder = heartbeat_dir(run.path, 1, "n1", run.path.parent / "memory")
    with subprocess.Popen(["sleep", "60"]) as process:
        heart = SharedHeart(folder, 0, 1, SystemClock())
        heart._pid = process.pid
        heart.beat("init")
        assert take(run) == "rank 0: init, no answer"
        process.send_signal(STACK_SIGNAL)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        process.kill()


def test_a_node_without_ranks(run):
    assert take(run) == "no rank beats here"


def test_py_spys_words_are_understood():
    """As py-spy 0.4.3 writes them (`dump --nonblocking --full-filenames`), of a rank in a reduction."""
    text = """Process 11219: /v/bin/python -u -m slurmtrain.train /runs/a
Python v3.11.7 (/opt/python3.11/bin/python3.11)

Thread 11219 (idle): "MainThread"
    all_reduce (/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:2806)
    wrapper (/v/lib/python3.11/site-packages/torch/distributed/c10d_logger.py:81)
    Step._reduced (/repo/slurmtrain/train/step.py:201)
    Step.__call__ (/repo/slurmtrain/train/step.py:150)
Thread 11241 (idle): "Thread-1 (watch)"
    Thread.run (/opt/python3.11/lib/python3.11/threading.py:982)
    Thread._bootstrap_inner (/opt/python3.11/lib/python3.11/threading.py:1045)
"""
    assert summary(text) == "all_reduce in step.py:201"


def test_a_stack_of_libraries_alone():
    text = 'Current thread 0x1 (most recent call first):\n  File "/usr/lib/python3.11/ssl.py", line 9 in read\n'
    assert summary(text) == "read in ssl.py:9"
    assert summary("") == "no stack"
