"""Hangs of real ranks under mpiexec, with an agent for each emulated node: found, named, ended, and the run goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from slurmtrain.resilience.records import read_attempts
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.heartbeat import run_memory
from slurmtrain.telemetry.reader import read_events
from tests.resilience.runs import make_run
from tests.resilience.test_world import alive, pids, start, steps_of, supervise, wait_for_step

pytestmark = pytest.mark.mpi
LIMIT_S = 4.0
FAST = {"hang": {"step_s": LIMIT_S}, "backoff_s": 0.1}
STEPS = {"steps": 60, "step_s": 0.1, "save_every": 5}


def hanging(path: Path, rank: int, do: str, **recovery: object) -> RunDir:
    behaviour = {**STEPS, "faults": [{"rank": rank, "step": 8, "do": do}]}
    return make_run(path, gpus=1, behaviour=behaviour, recovery={**FAST, **recovery})


def test_a_stopped_rank_ends_its_attempt_within_the_limit_and_the_next_one_finishes(tmp_path):
    run = hanging(tmp_path / "run", 1, "stop")
    code, out = supervise(run)
    first, second = read_attempts(run)
    assert (code, second.outcome.kind) == (0, "finished"), out
    outcome = first.outcome
    assert (outcome.category, outcome.rank, outcome.node) == ("hang", 1, "local-2"), out
    assert LIMIT_S <= outcome.seen_t - outcome.fault_t < LIMIT_S + 5
    assert "its process is stopped" in outcome.cause
    assert run.attempt(1).stack(1).read_text().startswith("rank 1 on local-2: ")
    assert "in tiny.py" in run.attempt(1).stack(0).read_text().splitlines()[0]
    assert sorted(step for _, step in steps_of(run))[-1] == 60
    assert not [pid for pid in pids(run, 1) if alive(pid)]
    assert not run_memory(run.path).exists()


@pytest.mark.long
def test_a_rank_that_stays_in_its_step_is_named_by_where_the_others_are(tmp_path):
    run = hanging(tmp_path / "run", 0, "hang")
    code, out = supervise(run)
    outcome = read_attempts(run)[0].outcome
    assert code == 0, out
    assert (outcome.category, outcome.rank, outcome.node) == ("hang", 0, "local-1")
    assert "meet_fault in tiny.py" in run.attempt(1).stack(0).read_text()


@pytest.mark.long
def test_a_slow_ranks_node_is_left_at_a_checkpoint(tmp_path):
    run = hanging(tmp_path / "run", 1, "slow 3", stragglers={"steps": 10, "exclude": True})
    code, out = supervise(run)
    first, second = read_attempts(run)
    assert (code, second.outcome.kind) == (0, "finished"), out
    assert (first.outcome.kind, first.outcome.category, first.outcome.node) == ("requeue", "hang", "local-2")
    assert first.outcome.last_durable_step == first.outcome.step
    told = [event for event in read_events(run.events) if event.kind == "straggler"]
    assert [(event.attempt, event.rank) for event in told] == [(1, 1)]
    assert [step for _, step in steps_of(run)] == list(range(1, 61)), "nothing was trained twice"


@pytest.mark.long
def test_an_agent_that_is_killed_costs_nothing_and_one_rank_stopped_after_it_is_found(tmp_path):
    run = make_run(tmp_path / "run", gpus=1, behaviour={**STEPS, "steps": 400}, recovery=FAST)
    process = start(run)
    wait_for_step(run, 5)
    agent = int((run_memory(run.path) / "local-2" / "agent").read_text().split()[0])
    os.kill(agent, signal.SIGKILL)
    wait_for_step(run, 25)
    os.kill(int((run.attempt(1).path / "pid-1").read_text()), signal.SIGSTOP)
    while not len(read_attempts(run)) > 1:
        assert process.poll() is None
    run.stop.touch()
    out, _ = process.communicate(timeout=60)
    assert read_attempts(run)[0].outcome.category == "hang", out
    assert read_attempts(run)[0].outcome.rank == 1
