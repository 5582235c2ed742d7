"""A drill's row, from timelines written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmtrain.report.drilled import Drilled, row_of, same_losses, words
from slurmtrain.resilience.drills import kind_of
from tests.report.stories import at, attempt, event, save, start, step

STILL = [step(1, 10.0 * n, n, loss=5 - n / 10) for n in range(1, 9)]
FAULTY = [
    start(1, 15, 0),
    *(step(1, 20 + 10 * n, n, loss=5 - n / 10) for n in range(1, 6)),
    save(1, 51, 3, 0.5),
    start(2, 95, 3),
    *(step(2, 100 + 10 * n, n + 3, loss=5 - (n + 3) / 10) for n in range(1, 6)),
]
"""Saved at 3, lost after 5: steps 4 and 5 are made twice."""
ATTEMPTS = [
    attempt(1, 0, 80, category="rank_crash", fault=72, seen=74.5),
    attempt(2, 85, 160, category="finished", kind="finished"),
]
TOLD = Drilled(kind_of("exit"), ATTEMPTS, FAULTY, "FINISHED", None, STILL, 0, ())


def test_the_figures():
    row = row_of(TOLD)
    assert (row.ok, row.detected, row.went, row.state) == (True, "rank_crash", "in place", "FINISHED"), row.why
    assert (row.detect_s, row.first_step_s, row.cold_start_s) == (2.5, 38.0, 30.0), "noticed at 74.5; steps at 110 and 30; faulty at 72"
    assert (row.steps_lost, row.attempts, row.starts, row.loss_equal) == (2, 2, 1, True)


def test_when_the_drill_struck_is_known_better():
    row = row_of(replace(TOLD, struck_t=at(73)))
    assert (row.detect_s, row.first_step_s) == (1.5, 37.0)


def test_another_start_of_the_job_is_a_requeue():
    row = row_of(replace(TOLD, attempts=[ATTEMPTS[0], attempt(2, 85, 160, restarts=1, category="finished", kind="finished")]))
    assert (row.went, row.starts, row.ok) == ("requeue", 2, True)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"attempts": [replace(ATTEMPTS[0], outcome=replace(ATTEMPTS[0].outcome, category="hang")), ATTEMPTS[1]]},
            "called hang, not rank_crash",
        ),
        ({"state": "FAILED"}, "ended (FAILED), not in place or requeue"),
        ({"reference": [*STILL[:-1], step(1, 80, 8, loss=5 - 8 / 10 + 1e-15)]}, "another loss"),
        ({"left": 3}, "3 processes left behind"),
        ({"drained": ("n2",)}, "drained: n2"),
        ({"attempts": [ATTEMPTS[1]]}, "called nothing"),
    ],
)
def test_what_is_not_as_it_should_be(change, why):
    row = row_of(replace(TOLD, **change))
    assert not row.ok
    assert why in row.why


def test_the_loss_of_a_skipped_step_is_another():
    events = [*STILL, event(1, 41, "skip", step=4)]
    row = row_of(Drilled(kind_of("nan"), [attempt(1, 0, 90, category="finished", kind="finished")], events, "FINISHED", None, STILL[:-1]))
    assert (row.detected, row.went, row.ok, row.loss_equal) == ("skip", "went on", True, False)
    assert (row.first_step_s, row.detect_s, row.left, row.drained) == (None, None, None, None)


def test_a_held_job_never_began():
    row = row_of(Drilled(kind_of("prolog-failure"), [], [], "PENDING", held=True, category="prolog_failure", drained=("n1",)))
    assert (row.ok, row.detected, row.went, row.attempts) == (True, "prolog_failure", "held", 0), row.why


def test_losses_are_compared_where_both_tell():
    assert same_losses([one for one in STILL if one.fields["step"] != 4], STILL)
    assert not same_losses(STILL[:-1], STILL)
    assert not same_losses([], [])


def test_as_people_read_it():
    told = dict(words(row_of(TOLD)))
    assert told["drill"] == "exit: ok"
    assert told["new step"] == "after 38.0 s (the first start took 30.0 s)"
    assert "left" in told
