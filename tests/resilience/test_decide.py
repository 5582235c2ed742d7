"""What the supervisor does next: table rows, and that every wait ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmtrain.resilience.decide import Ask, Collect, EndStep, Judge, Limits, View, Wait, decide
from slurmtrain.resilience.hang_types import Hang

LIMITS = Limits(start_s=600, grace_s=15, stop_s=1200, kill_wait_s=30)
CALM = View(now=1000.0, wall=50_000.0, started_at=900.0, spoke=True, steps_done=5, end_time=60_000.0, stop_at=59_000.0)


def deed(**changes: object) -> object:
    return decide(replace(CALM, **changes), LIMITS)


def test_nothing_to_do_is_wait():
    assert deed() == Wait()


def test_the_launchers_end_comes_before_everything():
    assert deed(step_over=True, interrupts=2, fault_at=0.0) == Judge()


@pytest.mark.parametrize(
    ("changes", "reason", "deadline"),
    [
        ({"notices": 1}, "requeue", False),
        ({"term_at": 999.0}, "requeue", False),
        ({"interrupts": 1}, "interrupt", False),
        ({"stop_file": True}, "stop", False),
        ({"wall": 59_000.0}, "requeue", True),
        ({"stop_file": True, "notices": 1, "term_at": 999.0}, "stop", False),
        ({"asked": "requeue", "asked_at": 999.0, "stop_file": True}, "stop", False),
        ({"asked": "requeue", "asked_at": 999.0, "interrupts": 1}, "interrupt", False),
    ],
)
def test_reasons_to_stop(changes, reason, deadline):
    made = deed(**changes)
    assert isinstance(made, Ask)
    assert (made.reason, made.deadline) == (reason, deadline)


@pytest.mark.parametrize("changes", [{"notices": 3}, {"term_at": 999.0}, {"wall": 59_000.0}])
def test_a_stop_is_asked_once(changes):
    assert deed(asked="requeue", asked_at=999.0, **changes) == Wait()


@pytest.mark.parametrize("changes", [{"notices": 1}, {"wall": 59_000.0}])
def test_a_requeue_never_replaces_a_persons_stop(changes):
    assert deed(asked="stop", asked_at=999.0, **changes) == Wait()


def test_a_deadline_that_is_over_before_the_first_step_leaves_time_for_one():
    assert deed(wall=59_500.0, steps_done=0) == Wait()


@pytest.mark.parametrize(
    ("changes", "words", "grace"),
    [
        ({"interrupts": 2}, "second Ctrl-C", 0.0),
        ({"fault_at": 985.0}, "first fault", 0.0),
        ({"fault_at": 990.0, "newest_at": 995.0}, "no word from the ranks", 0.0),
        ({"record_at": 940.0}, "first had ended", 15),
        ({"term_at": 973.0, "asked": "requeue", "asked_at": 973.0}, "30 s after TERM", 0.0),
        ({"asked": "requeue", "asked_at": -200.0}, "did not stop", 15),
        ({"asked": "requeue", "asked_at": 990.0, "wall": 59_980.0}, "time is over", 0.0),
        ({"term_at": 700.0, "asked": "requeue", "asked_at": 700.0, "in_grace": True, "wall": 59_980.0}, "time is over", 0.0),
        ({"spoke": False, "started_at": 400.0}, "start_timeout_s = 600", 15),
    ],
)
def test_every_wait_has_a_limit(changes, words, grace):
    made = deed(**changes)
    assert isinstance(made, EndStep)
    assert words in made.why
    assert made.grace_s == grace


@pytest.mark.parametrize(
    "changes",
    [
        {"fault_at": 986.0},
        {"record_at": 941.0},
        {"term_at": 974.0, "asked": "requeue", "asked_at": 974.0},
        {"term_at": 700.0, "asked": "requeue", "asked_at": 700.0, "in_grace": True},
        {"spoke": False, "started_at": 401.0},
    ],
)
def test_and_does_not_end_before_it(changes):
    assert deed(**changes) == Wait()


@pytest.mark.parametrize(("kill_wait", "left"), [(30.0, 27.0), (5.0, 5.0 - 5.0 / 3)])
def test_after_term_some_of_killwait_is_kept_for_writing(kill_wait, left):
    assert replace(LIMITS, kill_wait_s=kill_wait).after_term_s == pytest.approx(left)


STANDS = Hang(3, "n2", "step", 130.0, "rank 3 on n2 hangs")


def test_of_a_hang_the_evidence_is_collected_before_the_step_is_ended():
    assert deed(hang=STANDS) == Collect()
    assert deed(hang=STANDS, evidence_asked_at=999.0) == Wait()
    assert deed(hang=STANDS, evidence_asked_at=999.0, evidence=True) == EndStep("rank 3 on n2 hangs", 0.0)
    assert deed(hang=STANDS, evidence_asked_at=990.0) == EndStep("rank 3 on n2 hangs", 0.0)
    assert deed(evidence_asked_at=990.0) == Wait(), "they move again"


def test_a_persons_second_ctrl_c_waits_for_no_evidence():
    assert deed(hang=STANDS, interrupts=2) == EndStep("a second Ctrl-C", 0.0)
    assert deed(hang=STANDS, step_over=True) == Judge()


@pytest.mark.parametrize(
    ("changes", "ended"),
    [({"seen": True}, False), ({"seen": True, "started_at": 369.0}, True), ({"seen": True, "begun": True, "started_at": 0.0}, False)],
)
def test_a_start_in_which_ranks_are_seen_is_ended_by_whoever_looks_at_them(changes, ended):
    made = deed(**{"spoke": False, "started_at": 390.0, **changes})
    assert isinstance(made, EndStep) is ended


def test_a_slow_rank_is_the_last_of_all_reasons_to_stop():
    assert deed(slow="rank 3 is slow") == Ask("requeue", "rank 3 is slow: saving, to go on without that node", slow=True)
    assert deed(slow="rank 3 is slow", notices=1).slow is False
    assert deed(slow="rank 3 is slow", asked="requeue", asked_at=999.0) == Wait()
