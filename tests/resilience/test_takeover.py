"""A supervisor that was killed, and the one that is started for it in the same job: on a stage of fakes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from slurmtrain.resilience.judgement import last_step_is_saved
from slurmtrain.resilience.records import read_attempts
from slurmtrain.resilience.signals import Signals
from tests.resilience.stage import Stage


class Killed(BaseException):
    """SIGKILL: no `except Exception`, no file, no word."""


def batch_host(stage: Stage) -> str:
    return stage.recorded(1).nodes[0]


def kill(stage: Stage) -> None:
    """Let the supervisor be killed; what it started runs on."""

    def die() -> None:
        raise Killed

    stage.at(6.0, die)
    for step in range(1, 6):
        stage.at(float(step), lambda step=step: stage.make_step(step))
    stage.at(4.5, lambda: stage.save(4))
    with pytest.raises(Killed):
        stage.supervise()
    stage.left = True
    stage.signals, stage.agents.closed = Signals(stage.clock.monotonic), False


def test_the_next_one_ends_what_is_left_closes_the_record_and_goes_on_in_place(tmp_path):
    stage = Stage(tmp_path)
    kill(stage)
    stage.train(until=12, first=5, attempt=2)
    summary = stage.supervise()
    assert (summary.code, summary.outcome, summary.attempt, stage.slurm.requeued) == (0, "finished", 2, [])
    assert [path.parent.name for path in stage.left_ended] == ["0001"]
    first = stage.recorded(1).outcome
    assert first.kind == "failed"
    assert "supervisor (pid" in first.cause
    assert "ended by the next one" in first.cause
    assert stage.recorded(2).nodes == stage.recorded(1).nodes
    assert any(line.startswith("attempt 1 failed: its supervisor") for line in stage.lines)


def test_ranks_that_finished_without_it_are_believed(tmp_path):
    stage = Stage(tmp_path)
    kill(stage)
    stage.everybody("finished")
    summary = stage.supervise()
    assert (summary.code, summary.outcome) == (0, "finished")
    assert stage.run.finished.exists()
    assert len([spec for spec in stage.specs if spec.mpi is not None]) == 1


def test_a_script_that_does_not_say_how_many_steps_it_makes_has_no_last_checkpoint():
    """Broken: no last step and no checkpoint were equal, and one rank that left with 0 before the supervisor was killed ended the run."""
    job = SimpleNamespace(steps=None, entry=None)
    assert not last_step_is_saved(SimpleNamespace(setup=SimpleNamespace(job=job), run=None))


def test_an_attempt_that_was_closed_is_left_as_it_is(tmp_path):
    stage = Stage(tmp_path)
    stage.at(1.0, lambda: stage.make_step(1))
    stage.at(2.0, lambda: stage.everybody("stopped", "requeue"))
    stage.supervise()
    before = read_attempts(stage.run)[0]
    stage.start_again()
    stage.train(until=2)
    assert stage.supervise().outcome == "finished"
    assert read_attempts(stage.run)[0] == before
    assert stage.left_ended == []


def test_the_one_after_a_requeue_touches_nothing_of_the_start_before(tmp_path):
    """Slurm ended that start with all its steps; another job may run on its nodes by now."""
    stage = Stage(tmp_path)
    kill(stage)
    stage.start_again()
    stage.train(until=12, first=5, attempt=2)
    assert stage.supervise().outcome == "finished"
    first = stage.recorded(1).outcome
    assert stage.left_ended == []
    assert first is None or "ended by the next one" not in first.cause


def test_a_batch_host_that_was_lost_with_its_supervisor_is_told_by_the_next_start(tmp_path):
    """Nobody else lived to: without it the run would not know of the fault."""
    stage = Stage(tmp_path)
    kill(stage)
    stage.start_again()
    stage.slurm.node(batch_host(stage), "DOWN")
    stage.train(until=12, first=5, attempt=2)
    assert stage.supervise().outcome == "finished"
    first = stage.recorded(1).outcome
    assert (first.kind, first.category, first.node) == ("node_failure", "node_failure", batch_host(stage))
    assert first.t_end >= stage.recorded(1).t_start
