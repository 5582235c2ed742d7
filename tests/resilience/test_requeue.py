"""The requeue and what Slurm is told of the job that waits, on the fake cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmtrain.errors import SlurmError, SlurmUnavailableError
from slurmtrain.resilience.requeue import Wish, arrange, excluded_for, requeue
from slurmtrain.slurm.types import NodeInfo
from tests.fakes.clock import FakeClock
from tests.fakes.slurm import FakeSlurm

FOUR = [NodeInfo(name, frozenset({"IDLE"})) for name in ("n1", "n2", "n3", "n4")]
DOWN = [NodeInfo(info.name, frozenset({"DOWN" if info.name == "n4" else "IDLE"})) for info in FOUR]


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def slurm(clock):
    return FakeSlurm(clock)


@pytest.fixture
def job_id(slurm):
    return slurm.submit(Path("job.sbatch"), options=["--nodes=2"])


def told(slurm, job_id, wish, clock):
    lines: list[str] = []
    arrange(slurm, job_id, wish, restarts=0, clock=clock, say=lines.append)
    return slurm.job(job_id), lines


def test_the_job_that_waits_avoids_the_bad_node_and_starts_when_slurm_lets_it(slurm, job_id, clock):
    assert requeue(slurm, job_id, clock, lambda: 0, lambda _: None)
    begin = clock.time() + 120
    slurm.change(job_id, state="COMPLETING", start_time=begin)
    job, lines = told(slurm, job_id, Wish(avoid=("n2",), known=("n2",), nodes=2), clock)
    assert (job.avoided, job.start_time) == (("n2",), begin)
    assert "leave out n2" in lines[0]


def test_a_pause_is_slurms_begin_time(slurm, job_id, clock):
    requeue(slurm, job_id, clock, lambda: 0, lambda _: None)
    assert told(slurm, job_id, Wish(delay_s=40, nodes=2), clock)[0].start_time == clock.time() + 40


@pytest.mark.parametrize("now", [{}, {"restarts": 1}, {"state": "COMPLETING"}], ids=["runs", "started again", "scancel"])
def test_a_job_that_was_not_requeued_is_left_alone(slurm, job_id, clock, now):
    slurm.change(job_id, **now)
    job, lines = told(slurm, job_id, Wish(avoid=("n2",), nodes=2), clock)
    assert (job.avoided, lines) == ((), [])


def test_a_slurm_that_refuses_changes_nothing(slurm, job_id, clock):
    requeue(slurm, job_id, clock, lambda: 0, lambda _: None)

    def refuse(*_):
        raise SlurmError("scontrol: Access/permission denied")

    slurm.avoid = refuse
    _, lines = told(slurm, job_id, Wish(avoid=("n2",), nodes=2), clock)
    assert lines == ["the job waits as Slurm has it: scontrol: Access/permission denied"]


def test_a_question_that_the_requeues_term_ended_is_asked_again(slurm, job_id, clock):
    requeue(slurm, job_id, clock, lambda: 0, lambda _: None)
    ended = iter([SlurmError("scontrol: ended with code -15")])
    ask = slurm.job

    def job(number):
        for error in ended:
            raise error
        return ask(number)

    slurm.job = job
    assert told(slurm, job_id, Wish(avoid=("n2",), nodes=2), clock)[0].avoided == ("n2",)


@pytest.mark.parametrize(
    ("name", "wish", "now", "partition", "left_out"),
    [
        ("a bad node", Wish(("n2",), nodes=2), (), FOUR, ("n2",)),
        ("what a person excludes stays", Wish(("n2",), keep=("n9",), nodes=2), (), FOUR, ("n2", "n9")),
        ("what stood there stays", Wish(("n2",), known=("n2",), nodes=2), ("n7",), FOUR, ("n2", "n7")),
        ("what is good again is used again", Wish((), known=("n2",), nodes=2), ("n2", "n7"), (), ("n7",)),
        ("too few would be left", Wish(("n2",), nodes=4), (), FOUR, ()),
        ("too few would be left: one is down", Wish(("n2",), nodes=3), (), DOWN, ()),
        ("just enough are left", Wish(("n2",), nodes=2), (), DOWN, ("n2",)),
        ("a person has chosen the nodes", Wish(("n2",), nodes=2, free_choice=False), (), FOUR, ()),
        ("Slurm does not tell the partition's nodes", Wish(("n2",), nodes=2), (), (), ()),
    ],
)
def test_never_so_many_nodes_are_left_out_that_the_job_would_wait_for_ever(name, wish, now, partition, left_out):
    assert excluded_for(wish, now, partition) == left_out


def test_a_requeue_is_asked_again_while_slurm_does_not_answer_and_once_when_it_does(slurm, job_id, clock):
    slurm.down = True
    clock.at(12.0, lambda: setattr(slurm, "down", False))
    assert requeue(slurm, job_id, clock, lambda: 0, lambda _: None)
    assert slurm.requeued == [job_id]


def test_a_requeue_that_ended_its_own_scontrol_is_heard_by_the_term(slurm, job_id, clock):
    terms = iter([0, 1])

    def killed(_):
        raise SlurmUnavailableError("scontrol: ended with code -15")

    slurm.requeue = killed
    lines: list[str] = []
    assert requeue(slurm, job_id, clock, lambda: next(terms), lines.append)
    assert lines == []


def test_a_requeue_that_is_refused_says_how_to_go_on(slurm, clock):
    lines: list[str] = []
    assert not requeue(slurm, "99", clock, lambda: 0, lines.append)
    assert "slurmtrain submit --resume" in lines[0]
