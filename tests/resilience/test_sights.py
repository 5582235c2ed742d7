"""What an agent sees: processes in their states, ages of heartbeats, and a folder that stands still."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from slurmtrain.clock import SystemClock
from slurmtrain.resilience.agentwire import RankSight
from slurmtrain.resilience.sights import FolderProbe, Processes, sights_of, touch
from slurmtrain.telemetry.heartbeat import Beat
from tests.fakes.clock import FakeClock


def until(happened, limit_s: float = 10) -> None:
    deadline = time.monotonic() + limit_s
    while not happened():
        assert time.monotonic() < deadline, "too late"
        os.sched_yield()


def test_states_of_a_process():
    processes = Processes()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert processes.state(child.pid) == "runs"
        child.send_signal(signal.SIGSTOP)
        until(lambda: processes.state(child.pid) == "stopped")
        child.send_signal(signal.SIGCONT)
        until(lambda: processes.state(child.pid) == "runs")
        child.kill()
        until(lambda: processes.state(child.pid) == "gone")  # a zombie: nobody has waited for it
    finally:
        child.kill()
        child.communicate()
    assert processes.state(child.pid) == "gone"
    assert Processes().state(2**22 + 5) == "gone"


def test_ages_are_of_the_nodes_own_clock():
    pid = os.getpid()
    beats = [Beat(3, 2, pid, "save", 40, t=90.5, since=88.0, entered=7, work_s=0.25), Beat(1, 2, pid, "step", 40, 99.0, 99.0)]
    assert sights_of(beats, 100.0, Processes()) == (
        RankSight(1, os.getpid(), "runs", "step", 40, 1.0, 1.0),
        RankSight(3, os.getpid(), "runs", "save", 40, 9.5, 12.0, 7, 0.25),
    )


def test_a_question_to_the_folder_makes_and_changes_nothing(tmp_path):
    file = tmp_path / "job.json"
    with pytest.raises(FileNotFoundError):
        touch(file)
    assert list(tmp_path.iterdir()) == []
    file.write_text("{}")
    before = file.stat()
    touch(file)
    after = file.stat()
    assert (before.st_mtime_ns, before.st_ctime_ns, before.st_size) == (after.st_mtime_ns, after.st_ctime_ns, after.st_size)


def test_a_folder_that_stands_still_is_seen_from_its_first_second_on_and_until_it_answers(tmp_path):
    """Opening a pipe that nobody writes into waits as a dead server lets one wait."""
    pipe, clock = tmp_path / "job.json", FakeClock()
    os.mkfifo(pipe)
    probe = FolderProbe(pipe, clock, 5.0)
    asking = threading.Thread(target=probe.ask)
    asking.start()
    until(lambda: probe._since is not None)
    assert probe.stall_s(clock.monotonic()) == 0
    clock.advance(1.5)
    assert probe.stall_s(clock.monotonic()) == 1.5
    clock.advance(118.5)
    assert probe.stall_s(clock.monotonic()) == 120
    os.close(os.open(pipe, os.O_WRONLY))
    asking.join(10)
    assert probe.stall_s(clock.monotonic()) == 0


def test_a_folder_that_is_gone_does_not_answer_either(tmp_path):
    clock = FakeClock()
    probe = FolderProbe(tmp_path / "gone/job.json", clock, 5.0)
    probe.ask()
    clock.advance(5)
    probe.ask()
    assert probe.stall_s(clock.monotonic()) == 5
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone/job.json").touch()
    probe.ask()
    assert probe.stall_s(clock.monotonic()) == 0


def test_the_thread_asks_again_and_again_and_leaves(tmp_path):
    (tmp_path / "job.json").touch()
    probe = FolderProbe(tmp_path / "job.json", SystemClock(), 0.01)
    probe.start()
    (tmp_path / "job.json").unlink()
    until(lambda: probe._since is not None)
    probe.stop()
    until(lambda: not any(thread.name == "folder" for thread in threading.enumerate()))
