"""The supervisor with real ranks under mpiexec: a tiny trainer, two emulated nodes; each end and what it leaves behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurmtrain.resilience.records import read_attempt, read_owner
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.history import read_acts
from slurmtrain.telemetry.reader import read_events
from tests.mpi_world import clean_environment
from tests.resilience.runs import make_run
from tests.resilience.stage import ONCE

pytestmark = pytest.mark.mpi
HERE = Path(__file__).parent
LIMIT_S = 60
LONG = {"steps": 5000, "save_every": 10_000}
"""Not over before a fault is noticed, and without a checkpoint before it."""


def start(run: RunDir) -> subprocess.Popen[str]:
    argv = [sys.executable, str(HERE / "foreground.py"), str(run.path)]
    return subprocess.Popen(argv, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, _ = process.communicate(timeout=LIMIT_S)
    return process.returncode, out


def supervise(run: RunDir) -> tuple[int, str]:
    return finish(start(run))


def steps_of(run: RunDir) -> list[tuple[int, int]]:
    return [(e.attempt, e.fields["step"]) for e in read_events(run.events) if e.kind == "step"]


def wait_for_step(run: RunDir, step: int) -> None:
    limit = time.monotonic() + LIMIT_S
    while not any(done >= step for _, done in steps_of(run)):
        assert time.monotonic() < limit, "the ranks do not get on"
        time.sleep(0.05)


def test_a_run_finishes_and_a_later_start_has_nothing_to_do(tmp_path):
    run = make_run(tmp_path / "run", gpus=1, behaviour={"steps": 6, "step_s": 0.02})
    code, out = supervise(run)
    assert code == 0, out
    assert json.loads(run.finished.read_text())["step"] == 6
    assert steps_of(run) == [(1, step) for step in range(1, 7)]
    record = read_attempt(run, 1)
    assert (record.nodes, record.world, record.outcome.kind, record.outcome.last_durable_step) == (("local-1", "local-2"), 2, "finished", 6)
    assert record.packages["torch"]
    assert run.exit_code.read_text() == "0\n"
    assert "step 6/6" in run.slurm_out("local").read_text()
    code, out = supervise(run)
    assert (code, run.attempt_numbers()) == (0, [1])
    assert "nothing to do" in out


def test_one_rank_that_dies_in_a_barrier_ends_the_job_soon_and_is_named(tmp_path):
    run = make_run(tmp_path / "run", behaviour={**LONG, "faults": [{"rank": 3, "step": 4, "do": "exit 7"}]}, recovery=ONCE)
    began = time.monotonic()
    code, out = supervise(run)
    outcome = read_attempt(run, 1).outcome
    assert code == 93, out
    assert time.monotonic() - began < 30
    assert outcome.kind == "failed"
    assert "rank 3" in outcome.cause or "exit code 7" in outcome.cause, outcome
    assert not run.finished.exists()


@pytest.mark.parametrize(
    ("do", "code", "kind", "words"),
    [("raise", 93, "failed", "ValueError: a fault on purpose"), ("config", 78, "config", "not what was promised")],
)
def test_a_ranks_own_record_is_the_cause(tmp_path, do, code, kind, words):
    run = make_run(tmp_path / "run", gpus=1, behaviour={**LONG, "faults": [{"rank": 1, "step": 2, "do": do}]}, recovery=ONCE)
    assert supervise(run)[0] == code
    outcome = read_attempt(run, 1).outcome
    assert (outcome.kind, outcome.rank, outcome.node) == (kind, 1, "local-2")
    assert words in outcome.cause


def test_ctrl_c_stops_at_a_checkpoint_and_the_next_start_goes_on_from_it(tmp_path):
    run = make_run(tmp_path / "run", gpus=1, behaviour={"steps": 20, "save_every": 100})
    first = start(run)
    wait_for_step(run, 3)
    first.send_signal(signal.SIGINT)
    code, out = finish(first)
    outcome = read_attempt(run, 1).outcome
    assert (code, outcome.kind, outcome.signal) == (0, "stopped", "INT"), out
    assert outcome.last_durable_step == outcome.step
    assert read_owner(run.owner_json).ended
    assert supervise(run)[0] == 0
    assert [step for _, step in steps_of(run)] == list(range(1, 21))
    assert steps_of(run)[-1][0] == 2


def test_a_second_ctrl_c_ends_ranks_that_do_not_listen(tmp_path):
    run = make_run(tmp_path / "run", gpus=1, behaviour={"steps": 5000, "faults": [{"rank": 0, "step": 0, "do": "deaf"}]})
    process = start(run)
    wait_for_step(run, 2)
    process.send_signal(signal.SIGINT)
    while not run.attempt(1).stop.exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    code, out = finish(process)
    assert code == 1, out
    assert "second Ctrl-C" in read_attempt(run, 1).outcome.cause
    assert "cancel" in [act.what for act in read_acts(run)]
    assert not [pid for pid in pids(run, 1) if alive(pid)]


def test_stop_saves_and_ends_without_a_fault_and_stands_in_the_way_of_later_starts(tmp_path):
    run = make_run(tmp_path / "run", gpus=1, behaviour={"steps": 5000, "save_every": 10_000})
    process = start(run)
    wait_for_step(run, 2)
    run.stop.touch()
    code, out = finish(process)
    outcome = read_attempt(run, 1).outcome
    assert (code, outcome.kind) == (0, "stopped"), out
    assert outcome.last_durable_step == outcome.step
    code, out = supervise(run)
    assert (code, run.attempt_numbers()) == (0, [1])
    assert "--resume" in out


def test_after_a_supervisor_was_killed_the_next_start_takes_over(tmp_path):
    run = make_run(tmp_path / "run", gpus=1, behaviour={"steps": 200, "save_every": 5})
    first = start(run)
    wait_for_step(run, 6)
    first.kill()
    first.communicate(timeout=LIMIT_S)
    assert read_attempt(run, 1).outcome is None
    code, out = supervise(run)
    assert code == 0, out
    assert [read_attempt(run, n).outcome.kind for n in (1, 2)] == ["failed", "finished"]
    assert "ended by the next one" in read_attempt(run, 1).outcome.cause
    assert not [pid for pid in pids(run, 1) if alive(pid)]
    assert [step for _, step in steps_of(run)] == list(range(1, 201)), "TERM lets ranks save: nothing was to be trained twice"


def pids(run: RunDir, attempt: int) -> list[int]:
    return [int(path.read_text()) for path in run.attempt(attempt).path.glob("pid-*")]


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0]
