"""What the soak found, each on a stage of its own."""

from __future__ import annotations

import random

from slurmtrain.resilience.supervisor import DISK_WAIT_S
from tests.resilience.soak_doors import Killed
from tests.resilience.soak_stage import SoakStage, Step


def stage_of(folder, shape="plain") -> SoakStage:
    """Without faults, but for those that a test arranges."""
    stage = SoakStage(folder, shape, random.Random(1), lambda _: None)
    stage.steps = 12
    stage.submit()
    stage.give()
    return stage


def fail_with_a_full_disk(stage: SoakStage, full_s: float) -> None:
    def crash() -> None:
        stage.disk.full = True
        stage.clock.at(full_s, lambda: setattr(stage.disk, "full", False))
        stage.lose_ranks(set(), "ValueError: bad token")

    stage.clock.at(4.0, crash)


def test_a_disk_that_is_full_when_the_next_attempt_is_claimed_is_waited_for(tmp_path):
    """Broken: the supervisor ends with a traceback, and nobody starts the job again."""
    stage = stage_of(tmp_path)
    fail_with_a_full_disk(stage, 60.0)
    summary = stage.script()
    assert (summary.code, summary.outcome) == (0, "finished")
    assert any("waiting for the disk" in line for line in stage.lines)


def test_a_disk_that_stays_full_ends_the_job_in_words(tmp_path):
    stage = stage_of(tmp_path)
    fail_with_a_full_disk(stage, 10 * DISK_WAIT_S)
    summary = stage.script()
    assert (summary.code, summary.outcome) == (1, "failed")
    assert "No space left on device" in summary.cause
    assert stage.clock.time() < stage.clock.limit


def test_what_is_written_before_a_step_is_ended_says_that_it_hung(tmp_path, monkeypatch):
    """Broken: a supervisor that Slurm ends meanwhile leaves "launch_failure", and that is charged."""
    stage = stage_of(tmp_path)

    def die(*_: object) -> None:
        raise Killed

    def stop() -> None:
        stage.stand()
        stage.stopped = 1

    monkeypatch.setattr(Step, "end", die)
    stage.clock.at(4.0, stop)
    stage.taken = True
    assert stage.script() is None
    outcome = stage.recorded(1).outcome
    assert (outcome.category, outcome.rank, outcome.node) == ("hang", 1, "n1")


def test_a_job_that_slurm_requeues_although_its_budget_is_spent_makes_no_further_attempt(tmp_path):
    """Broken: each node that dies buys a run that gets nowhere another start."""
    stage = stage_of(tmp_path)
    codes = []
    for turn in range(4):
        if turn:
            stage.give()
        stage.clock.at(2.0, lambda: stage.lose_node(stage.job().nodes[-1]))
        summary = stage.script()
        codes.append(summary.code if summary else None)
        stage.clock.forget()
    assert codes == [75, 75, 75, 93]
    assert [record.attempt for record in stage.attempts()] == [1, 2, 3]
    assert "3 attempts in a row brought no newer checkpoint" in stage.lines[-1]
