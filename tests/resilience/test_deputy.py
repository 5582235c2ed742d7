"""The deputy: what it does about a supervisor that is lost with its node, as a table, and with a Slurm and a run folder."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmtrain.resilience.allocation import SlurmAllocation
from slurmtrain.resilience.deputy import LIMIT_S, LOOK_S, TAKE_OVER_S, TURN_S, Deputy, Scene, answers, judge
from slurmtrain.resilience.exclude import read_excluded
from slurmtrain.resilience.owner import claim
from slurmtrain.resilience.records import AttemptRecord, Outcome, Owner, close_attempt, read_attempt, read_owner, write_attempt
from slurmtrain.slurm.types import JobInfo
from slurmtrain.telemetry.history import add_act, read_acts
from tests.fakes.clock import FakeClock
from tests.fakes.disk import FakeDisk
from tests.fakes.shell import FakeShell, Said
from tests.fakes.slurm import FakeSlurm
from tests.resilience.runs import make_run
from tests.resilience.stage import Stage as SupervisorStage

JOB = JobInfo("7", "run", "RUNNING", nodes=("n1", "n2", "n3"), batch_host="n1", restarts=1)
OWNER = Owner("7", 1, 4, "n1", 4711, 1000.0)
LOST = Scene(JOB, 1, "down", OWNER)


@pytest.mark.parametrize(
    ("scene", "word"),
    [
        (LOST, "requeue"),
        (replace(LOST, host="silent"), "requeue"),
        (replace(LOST, host="answers"), "leave"),
        (replace(LOST, host="unknown"), "wait"),
        (replace(LOST, job="unknown"), "wait"),
        (replace(LOST, job=None), "leave"),
        (replace(LOST, job=replace(JOB, state="PENDING")), "leave"),
        (replace(LOST, job=replace(JOB, state="COMPLETING")), "leave"),
        (replace(LOST, job=replace(JOB, restarts=2)), "leave"),
        (replace(LOST, taken_s=0.0), "wait"),
        (replace(LOST, taken_s=TAKE_OVER_S), "requeue"),
        (replace(LOST, over="STOP"), "end"),
        (replace(LOST, over="STOP", host="answers"), "leave"),
        (replace(LOST, over="cancelled", taken_s=0.0), "wait"),
        (replace(LOST, mine=False, owner=replace(OWNER, job_id="8")), "end"),
        (replace(LOST, owner=replace(OWNER, ended=True), code=75), "requeue"),
        (replace(LOST, owner=replace(OWNER, ended=True), code=0), "end"),
        (replace(LOST, owner=replace(OWNER, ended=True), code=93), "end"),
        (replace(LOST, owner=replace(OWNER, ended=True)), "end"),
        (replace(LOST, owner=None), "requeue"),
    ],
)
def test_the_table(scene, word):
    assert judge(scene)[0] == word


class Stage:
    """Job 1 on n1 to n3 with its supervisor on n1, which is lost in attempt 1."""

    def __init__(self, tmp_path) -> None:
        self.run = make_run(tmp_path / "run", launcher="srun", nodes=3)
        self.clock, self.disk = FakeClock(), FakeDisk()
        self.slurm = FakeSlurm(self.clock)
        self.job = self.slurm.submit(tmp_path / "x", options=["--nodes=3"])
        me = Owner(self.job, 0, 0, "n1", 4711, self.clock.time())
        self.owner = claim(self.run, me, disk=self.disk, clock=self.clock, client=self.slurm)
        write_attempt(self.run, self.disk, AttemptRecord(1, self.job, 0, 1.0, ("n1", "n2"), ("n3",), 2, 4))
        self.slurm.node("n1", "DOWN")
        self.probed: list[str] = []
        self.answers = False
        self.away = False
        self.lines: list[str] = []

    def probe(self, host: str) -> bool:
        self.probed.append(host)
        return self.answers

    def deputy(self, node: str = "n2", place: int = 0) -> Deputy:
        allocation = SlurmAllocation(self.slurm, self.clock, {"SLURM_JOB_ID": self.job})
        doors = {"client": self.slurm, "clock": self.clock, "disk": self.disk, "probe": self.probe}
        return Deputy(self.run, node, place, allocation, away=lambda: self.away, say=self.lines.append, **doors)

    @property
    def acts(self) -> list[str]:
        return [act.what for act in read_acts(self.run)]


@pytest.fixture
def stage(tmp_path) -> Stage:
    return Stage(tmp_path)


def test_the_batch_host_is_down_one_requeue_with_everything_written_before(stage):
    at_requeue = []
    requeue = stage.slurm.requeue
    stage.slurm.requeue = lambda job: (at_requeue.append(read_attempt(stage.run, 1).outcome), requeue(job))
    assert stage.deputy().stand_in() == "requeue"
    assert stage.slurm.requeued == [stage.job]
    (outcome,) = at_requeue
    assert (outcome.kind, outcome.category, outcome.node) == ("node_failure", "node_failure", "n1")
    assert read_owner(stage.run.owner_json).ended
    assert stage.run.attempt(1).deputy.exists()
    assert stage.acts == ["requeue"]
    assert list(read_excluded(stage.run.exclude_json, stage.clock.time() + 23 * 3600)) == ["n1"]
    assert read_excluded(stage.run.exclude_json, stage.clock.time() + 25 * 3600) == {}
    assert stage.probed == [], "Slurm's word was enough"


def test_a_host_that_slurm_takes_for_healthy_is_asked_itself(stage):
    stage.slurm.node("n1", "ALLOCATED")
    assert stage.deputy().stand_in() == "requeue"
    assert stage.probed == ["n1"]
    stage.answers = True
    other = Stage(stage.run.path.parent / "other")
    other.slurm.node("n1", "ALLOCATED")
    other.answers = True
    assert other.deputy().stand_in() == "leave"
    assert (other.slurm.requeued, other.slurm.cancelled, other.acts) == ([], [], [])
    assert not other.run.attempt(1).deputy.exists()
    assert read_attempt(other.run, 1).outcome is None


def test_each_deputy_waits_for_those_before_it_and_finds_the_job_gone(stage):
    begun = stage.clock.monotonic()
    stage.clock.at(3, lambda: stage.deputy().stand_in())
    assert stage.deputy("n3", place=1).stand_in() == "leave"
    assert stage.clock.monotonic() - begun >= TURN_S
    assert stage.slurm.requeued == [stage.job]


def test_a_deputy_that_died_after_it_had_taken_the_fence_is_replaced(stage):
    stage.disk.create_exclusive(stage.run.attempt(1).deputy, b"{}")
    begun = stage.clock.monotonic()
    assert stage.deputy("n3", place=1).stand_in() == "requeue"
    assert stage.clock.monotonic() - begun >= TURN_S + TAKE_OVER_S
    assert stage.slurm.requeued == [stage.job]
    assert b"n3" in stage.run.attempt(1).deputy.read_bytes()


def test_a_deputy_that_lost_the_race_waits(stage):
    """Between its look and its deed another one took the fence."""
    create = stage.disk.create_exclusive
    stage.disk.create_exclusive = lambda path, data: False if path.name == "deputy.json" else create(path, data)
    assert stage.deputy().stand_in() == "wait"
    assert stage.slurm.requeued == []


@pytest.mark.parametrize("how", ["stop", "finished", "cancel"])
def test_a_persons_word_wins_and_the_job_does_not_run_on_without_a_script(stage, how):
    if how == "cancel":
        add_act(stage.run, stage.disk, 5.0, "cancel", job_id=stage.job)
    else:
        (stage.run.stop if how == "stop" else stage.run.finished).touch()
    assert stage.deputy().stand_in() == "end"
    assert stage.slurm.requeued == []
    assert [one.job_id for one in stage.slurm.cancelled] == [stage.job]


def test_a_cancel_that_failed_or_was_of_an_earlier_job_does_not_count(stage):
    add_act(stage.run, stage.disk, 5.0, "cancel", job_id="999")
    add_act(stage.run, stage.disk, 6.0, "cancel", job_id=stage.job)
    add_act(stage.run, stage.disk, 7.0, "cancel failed", job_id=stage.job)
    assert stage.deputy().stand_in() == "requeue"


def test_a_run_that_another_job_owns_is_not_touched(stage):
    theirs = replace(stage.owner, job_id="999", attempt=2)
    stage.run.attempt(2).create()
    stage.disk.write(stage.run.owner_json, theirs.to_json())
    assert stage.deputy().stand_in() == "end"
    assert read_owner(stage.run.owner_json) == theirs
    assert not stage.run.attempt(2).deputy.exists()
    assert read_attempt(stage.run, 1).outcome is None


def test_an_attempt_that_began_after_the_agents_last_word_is_the_one_that_is_closed(stage):
    mine = replace(stage.owner, attempt=2)
    stage.run.attempt(2).create()
    stage.disk.write(stage.run.owner_json, mine.to_json())
    close_attempt(stage.run, stage.disk, read_attempt(stage.run, 1), Outcome("failed", "a fault", category="rank_crash"))
    write_attempt(stage.run, stage.disk, AttemptRecord(2, stage.job, 0, 2.0, ("n1", "n2"), ("n3",), 2, 4))
    assert stage.deputy().stand_in() == "requeue"
    assert [read_attempt(stage.run, n).outcome.category for n in (1, 2)] == ["rank_crash", "node_failure"]
    assert stage.run.attempt(2).deputy.exists()


def test_slurm_that_does_not_answer_is_asked_again_and_not_for_ever(stage):
    stage.slurm.down = True
    stage.clock.at(300, lambda: setattr(stage.slurm, "down", False))
    assert stage.deputy().stand_in() == "requeue"
    other = Stage(stage.run.path.parent / "other")
    other.slurm.down = True
    begun = other.clock.monotonic()
    assert other.deputy().stand_in() == "wait"
    assert other.clock.monotonic() - begun <= LIMIT_S + 10


def test_a_deputy_whose_node_is_taken_over_or_ended_leaves_at_once(stage):
    stage.clock.at(10, lambda: setattr(stage, "away", True))
    begun = stage.clock.monotonic()
    assert stage.deputy("n3", place=1).stand_in() == "wait"
    assert stage.clock.monotonic() - begun <= 10 + LOOK_S
    assert stage.slurm.requeued == []


def test_a_shared_folder_that_takes_nothing_gets_no_requeue_without_a_fence(stage):
    stage.disk.faults["create_exclusive"] = None
    stage.clock.at(60, lambda: setattr(stage, "away", True))
    assert stage.deputy().stand_in() == "wait"
    assert stage.slurm.requeued == []
    assert "No space left" in "\n".join(stage.lines)


def test_the_probe_is_a_task_of_its_own_on_that_node():
    shell = FakeShell({("srun",): Said(seconds=60)})
    assert not answers(shell, {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, "7", "n1")
    (call,) = shell.calls
    assert {"--jobid=7", "--nodelist=n1", "--overlap", "--nodes=1", "--ntasks=1"} < set(call.argv)
    assert call.env == {"SLURM_JOB_ID": "7"}
    assert answers(FakeShell({("srun",): ""}), {"SLURM_JOB_ID": "7"}, "7", "n1")


def test_a_supervisor_that_wakes_up_after_its_deputy_has_acted_leaves_everything_as_it_is(tmp_path):
    """Its host hung, and comes back while Slurm ends the job: no second requeue, no other outcome."""
    stage = SupervisorStage(tmp_path)
    stage.train(until=5)

    def act() -> None:
        allocation = SlurmAllocation(stage.slurm, stage.clock, stage.environ)
        stage.slurm.node("n1", "NOT_RESPONDING")
        doors = {"client": stage.slurm, "clock": stage.clock, "disk": stage.disk, "probe": lambda _: False}
        assert Deputy(stage.run, "n2", 0, allocation, **doors).stand_in() == "requeue"

    stage.at(3.5, act)
    summary = stage.supervise()
    assert stage.slurm.requeued == [stage.job_id]
    assert summary.code == 93
    assert stage.recorded().outcome.category == "node_failure"
