"""Links of a chain under the real supervisor, one after another, on a stage: fakes of Slurm, launcher, clock and ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurmtrain.resilience.budget import Spent, read_budget, write_budget
from slurmtrain.resilience.records import read_attempts, write_attempt
from slurmtrain.resilience.signals import NOTICE, TERM, Signals
from slurmtrain.resilience.supervisor import Summary
from slurmtrain.telemetry.history import CANCEL_FAILED, add_act
from tests.resilience.stage import Stage


class Chain:
    """A stage whose job is an array of three links."""

    def __init__(self, folder: Path, **recovery: object) -> None:
        self.stage = Stage(folder, nodes=2, continuation="chain", links=3, recovery=recovery)
        self.array, self.job = self.stage.job_id, self.stage.job()

    def link(self, number: int) -> Summary:
        """Slurm starts a link; what came of it."""
        stage = self.stage
        stage.job_id = f"{self.array}_{number}"
        stage.slurm.put(replace(self.job, job_id=stage.job_id))
        stage.environ = {
            "SLURM_JOB_ID": str(100 + number),
            "SLURM_ARRAY_JOB_ID": self.array,
            "SLURM_ARRAY_TASK_ID": str(number),
            "SLURM_ARRAY_TASK_MAX": "3",
        }
        stage.signals = Signals(stage.clock.monotonic)
        return stage.supervise()

    def ends(self) -> list[tuple[str, str | None]]:
        return [(r.job_id.partition("_")[2], r.outcome.category) for r in read_attempts(self.stage.run)]

    def ends_known(self) -> list[int]:
        return [r.attempt for r in read_attempts(self.stage.run)]


@pytest.fixture
def chain(tmp_path) -> Chain:
    return Chain(tmp_path)


def noticed(chain: Chain, first: int, steps: int = 5) -> None:
    """A link that trains, and gets the notice of its end after some steps."""
    chain.stage.train(until=first + 99, first=first)
    chain.stage.at(steps + 0.5, lambda: chain.stage.signals.receive(NOTICE))


def test_links_go_on_from_one_another_and_none_is_requeued(chain):
    codes = []
    for number, first in ((1, 1), (2, 6)):
        noticed(chain, first)
        codes.append(chain.link(number).code)
    chain.stage.train(until=20, first=11)
    assert [*codes, chain.link(3).code] == [0, 0, 0]
    assert chain.ends() == [("1", "time_limit"), ("2", "time_limit"), ("3", "finished")]
    assert chain.stage.slurm.requeued == []
    assert chain.stage.run.finished.exists()


def test_the_last_link_that_is_stopped_says_that_the_chain_is_at_its_end(chain):
    noticed(chain, 1)
    assert chain.link(3).code == 75
    assert "this was the last link" in chain.stage.lines[-1]


def test_scancel_of_a_link_whose_supervisor_could_not_write_it_down_ends_the_chain(chain):
    """It was killed and not back yet, or had only begun: Slurm knows."""
    noticed(chain, 1)
    chain.link(1)
    chain.stage.slurm.put(replace(chain.job, job_id=f"{chain.array}_1", state="CANCELLED"))
    for later in (2, 3):
        assert chain.link(later).code == 0
        assert "a person cancelled the chain" in chain.stage.lines[-1]
    assert chain.ends() == [("1", "time_limit")]


@pytest.mark.parametrize("what", ["FINISHED", "STOP"])
def test_a_link_that_finds_the_end_does_nothing(chain, what):
    (chain.stage.run.path / what).write_text("{}")
    assert chain.link(2).code == 0
    assert chain.ends() == []


def test_slurmtrain_cancel_ends_all_links_that_come(chain):
    stage = chain.stage
    add_act(stage.run, stage.disk, stage.clock.time(), "submit", job_id=chain.array)
    add_act(stage.run, stage.disk, stage.clock.time(), "cancel", job_id=f"{chain.array}_1")
    assert (chain.link(2).code, chain.ends()) == (0, [])
    add_act(stage.run, stage.disk, stage.clock.time(), CANCEL_FAILED, job_id=f"{chain.array}_1")
    stage.train(until=3)
    assert (chain.link(2).outcome, chain.ends()) == ("finished", [("2", "finished")])


def test_scancel_of_one_link_ends_the_chain(chain):
    stage = chain.stage
    stage.train(until=100)
    stage.at(5.5, lambda: (stage.job(state="COMPLETING"), stage.signals.receive(TERM)))
    chain.link(1)
    assert (chain.link(2).code, chain.link(3).code) == (0, 0)
    assert chain.ends() == [("1", "cancelled")]


def test_a_preempted_link_is_followed(chain):
    """Slurm says PreemptTime of a job that it does not requeue; without it this would be a scancel."""
    stage = chain.stage
    stage.train(until=100)
    stage.at(5.5, lambda: (stage.job(state="COMPLETING", preempt_time=stage.clock.time()), stage.signals.receive(TERM)))
    chain.link(1)
    stage.train(until=10, first=6)
    assert chain.link(2).outcome == "finished"
    assert chain.ends() == [("1", "preempted"), ("2", "finished")]


def test_budgets_go_over_links_and_the_ones_after_their_end_do_nothing(tmp_path):
    chain = Chain(tmp_path, in_place=False, no_progress=2)
    codes = []
    for number in (1, 2, 3):
        chain.stage.at(1.0, lambda: chain.stage.make_step(1))
        chain.stage.at(1.5, lambda: chain.stage.everybody("error", "ValueError: bad token"))
        codes.append(chain.link(number).code)
    assert codes == [1, 93, 93]
    assert chain.ends() == [("1", "rank_crash"), ("2", "rank_crash")]
    assert read_budget(chain.stage.run).over == "2 attempts in a row brought no newer checkpoint"
    assert sum(line.startswith("tried: attempt ") for line in chain.stage.lines) == 2


def test_a_wrong_configuration_ends_the_chain(chain):
    chain.stage.at(1.0, lambda: chain.stage.everybody("config", "MPI sees 1 rank"))
    assert (chain.link(1).code, chain.link(2).code) == (78, 93)
    assert chain.ends() == [("1", "configuration")]


def test_an_attempt_that_nobody_lived_to_charge_is_charged_by_the_next_link(tmp_path):
    """Broken: a batch host that dies each time costs nothing, and Slurm starts the run for ever."""
    chain = Chain(tmp_path, in_place=False)
    stage = chain.stage
    noticed(chain, 1)
    chain.link(1)
    write_attempt(stage.run, stage.disk, replace(stage.recorded(1), outcome=None))
    write_budget(stage.run, stage.disk, Spent(chain.array, durable_step=5))
    stage.at(1.0, lambda: stage.make_step(6))
    stage.at(1.5, lambda: stage.everybody("error", "ValueError: bad token"))
    chain.link(2)
    spent = read_budget(stage.run)
    assert (spent.attempt, spent.without_progress, dict(spent.by_cause)) == (2, 2, {"node_failure": 1, "rank_crash": 1})


def test_a_batch_host_that_dies_each_time_spends_the_budget_too(tmp_path):
    """Three links (or requeues by Slurm) whose supervisors never lived to say a word: the fourth makes no attempt."""
    chain = Chain(tmp_path)
    stage = chain.stage
    noticed(chain, 1)
    chain.link(1)
    for number in (2, 3, 4):
        stage.run.attempt(number).create()
        write_attempt(stage.run, stage.disk, replace(stage.recorded(1), attempt=number, job_id=f"{chain.array}_1", outcome=None))
    assert chain.link(2).code == 93
    assert chain.ends_known() == [1, 2, 3, 4], "there was another attempt"
    assert read_budget(stage.run).over == "3 attempts in a row brought no newer checkpoint"
    assert sum("tried: attempt" in line for line in stage.lines) == 4
    assert chain.link(3).code == 93
