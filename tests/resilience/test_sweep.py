"""Nothing stays behind, and nobody else is touched: real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from slurmtrain.clock import SystemClock
from slurmtrain.resilience.sweep import belongs, sweep
from slurmtrain.telemetry.heartbeat import SharedHeart, heartbeat_dir, read_beats, run_memory

RUN = Path(f"/runs/swept-{os.getpid()}")
CLOCK = SystemClock()
SLEEP = "import os, time; os.write(1, b'up\\n'); time.sleep(600)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
PARENT = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(2):
    subprocess.Popen([sys.executable, "-c", sys.argv[1]])
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execve(sys.executable, [sys.executable, "-c", sys.argv[1]], {} if sys.argv[2] == "bare" else os.environ)
os.wait()
time.sleep(600)
"""


def env(node: str = "n1", attempt: int = 2, run: Path = RUN) -> dict[str, str]:
    return {**os.environ, "SLURMTRAIN_RUN": str(run), "SLURMTRAIN_ATTEMPT": str(attempt), "SLURMTRAIN_NODE": node}


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def start():
    """Start Python code; hands back the process once `lines` lines were printed."""
    children: list[subprocess.Popen[str]] = []

    def begin(code: str, *words: str, lines: int = 1, **where: object) -> subprocess.Popen[str]:
        child = subprocess.Popen([sys.executable, "-c", code, *words], env=env(**where), stdout=subprocess.PIPE, text=True)
        children.append(child)
        for _ in range(lines):
            assert child.stdout.readline() == "up\n"
        return child

    yield begin
    for child in children:
        child.kill()
        child.wait()
        child.stdout.close()


def test_who_listens_to_term_goes_by_it_and_who_does_not_by_kill(start):
    polite, deaf = start(SLEEP), start(DEAF)
    swept = sweep(RUN, "n1", 2, clock=CLOCK, grace_s=0.3)
    assert (swept.ended, swept.killed, swept.left) == (2, 1, ())
    assert (polite.wait(5), deaf.wait(5)) == (-signal.SIGTERM, -signal.SIGKILL)
    assert str(swept) == "2 processes ended, 1 of them by SIGKILL"
    assert str(sweep(RUN, "n1", 2, clock=CLOCK)) == "nothing was left"


def test_a_stopped_rank_goes_too(start):
    rank = start(SLEEP)
    rank.send_signal(signal.SIGSTOP)
    assert sweep(RUN, "n1", 2, clock=CLOCK, grace_s=0.2).ended == 1
    assert rank.wait(5) == -signal.SIGKILL


def test_children_that_ignore_term_and_a_daemon_in_a_session_of_its_own(start):
    """C4: processes that a rank leaves behind keep its node from the next job, and drain it."""
    rank = start(PARENT, DEAF, "marked", lines=3)
    family = {p.pid for p in psutil.process_iter() if "SLURMTRAIN_RUN" in _environ(p) and _environ(p)["SLURMTRAIN_RUN"] == str(RUN)}
    assert len(family) == 4
    rank.kill()
    rank.wait()
    swept = sweep(RUN, "n1", 2, clock=CLOCK, grace_s=0.2)
    assert (swept.ended, swept.left) == (3, ())
    assert all(gone(pid) for pid in family)


def test_what_shed_its_environment_is_found_while_its_parent_lives(start):
    """A child with an empty environment is known by descent alone."""
    bare = "import os, subprocess, sys; c = subprocess.Popen([sys.executable, '-c', sys.argv[1]], env={}); c.wait()"
    rank = start(bare, DEAF)
    (child,) = psutil.Process(rank.pid).children()
    assert sweep(RUN, "n1", 2, clock=CLOCK, grace_s=0.2).ended == 2
    assert gone(child.pid)


def test_others_stay(start):
    """Another run, a later attempt, another node of the same machine, and who sweeps."""
    others = [start(SLEEP, run=Path("/runs/other")), start(SLEEP, attempt=3), start(SLEEP, node="n2")]
    mine = start(SLEEP, attempt=1)
    assert sweep(RUN, "n1", 2, clock=CLOCK).ended == 1
    assert mine.wait(5) == -signal.SIGTERM
    assert all(other.poll() is None for other in others)


def test_who_sweeps_is_not_swept_nor_what_started_it(tmp_path):
    """An agent that a rank's environment leaked into."""
    code = (
        "import sys; from pathlib import Path; from slurmtrain.resilience.sweep import sweep; from slurmtrain.clock import SystemClock\n"
        f"print(sweep(Path({str(RUN)!r}), 'n1', 2, clock=SystemClock(), grace_s=0.1))"
    )
    outer = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {code!r}]).returncode)"
    done = subprocess.run([sys.executable, "-c", outer], env=env(), capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "nothing was left\n"), done.stderr


def test_heartbeats_of_attempts_that_are_over_go_and_those_of_later_ones_stay(tmp_path):
    for attempt, node in ((1, "n1"), (2, "n1"), (3, "n1"), (2, "n2")):
        SharedHeart(heartbeat_dir(RUN, attempt, node, tmp_path), 0, attempt, CLOCK)
    sweep(RUN, "n1", 2, clock=CLOCK, memory=tmp_path)
    left = {(a, n) for a in (1, 2, 3) for n in ("n1", "n2") if read_beats(heartbeat_dir(RUN, a, n, tmp_path))}
    assert left == {(3, "n1"), (2, "n2")}
    sweep(RUN, "n1", 3, clock=CLOCK, memory=tmp_path)
    sweep(RUN, "n2", 3, clock=CLOCK, memory=tmp_path)
    assert not run_memory(RUN, tmp_path).exists()


def test_the_name_of_the_node_is_slurms_where_none_is_emulated():
    marks = {"SLURMTRAIN_RUN": str(RUN), "SLURMTRAIN_ATTEMPT": "2", "SLURMD_NODENAME": "n1"}
    assert belongs(marks, RUN, "n1", 2)
    assert not belongs({**marks, "SLURMTRAIN_NODE": "local-1"}, RUN, "n1", 2)
    assert not belongs({**marks, "SLURMTRAIN_ATTEMPT": ""}, RUN, "n1", 2)
    assert not belongs({}, RUN, "", 2)


def test_it_takes_no_longer_than_the_processes(start):
    start(SLEEP)
    begun = time.monotonic()
    sweep(RUN, "n1", 2, clock=CLOCK, grace_s=20)
    assert time.monotonic() - begun < 5


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}
