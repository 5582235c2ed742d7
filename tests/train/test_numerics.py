"""Skip, go back, end: the state machine alone."""

from __future__ import annotations

import pytest

from slurmtrain.config.recovery import NumericsConfig
from slurmtrain.errors import CheckpointError
from slurmtrain.telemetry.interventions import Book
from slurmtrain.train.numerics import Numerics


def made(book=None, **wish):
    return Numerics(NumericsConfig(**wish), book)


def back(numerics, step, to):
    numerics.book = numerics.book.with_rollback(numerics.rollback(step, to, "nonfinite", (8 * to, 8 * step)))
    numerics.restore({})


def test_nothing_is_asked_for():
    numerics = made()
    assert numerics.failed(5) == "end"
    assert numerics.to_state() == {}


def test_skips_in_a_row_then_back_then_the_end():
    numerics = made(skip_steps=2, rollbacks=2)
    numerics.passed(1.0)
    assert [numerics.failed(5), numerics.failed(6)] == ["skip", "skip"]
    numerics.passed(1.0)
    assert [numerics.failed(step) for step in (8, 9, 10)] == ["skip", "skip", "rollback"]
    assert (numerics.began, numerics.good_until) == (8, 7)
    back(numerics, 10, 6)
    assert [numerics.failed(step) for step in (8, 9, 10)] == ["skip", "skip", "rollback"]
    back(numerics, 10, 6)
    assert [numerics.failed(step) for step in (8, 9, 10)] == ["skip", "skip", "end"]
    assert numerics.book.skipped == 2 + 3 * 2


def test_the_life_of_the_run_counts_not_the_checkpoint():
    numerics = made(rollbacks=1)
    numerics.failed(4)
    back(numerics, 4, 2)
    again = made(book=Book(rollbacks=numerics.book.rollbacks), rollbacks=1)
    again.restore({})  # of a checkpoint made before
    assert again.failed(4) == "end"


def test_what_a_way_back_changes():
    numerics = made(rollbacks=3, older_by=4, skip_data=True, lr_factor=0.5, for_steps=10)
    numerics.failed(20)
    assert numerics.good_until == 15
    way = numerics.rollback(20, 12, "spike", (96, 160))
    assert (way.step, way.began, way.to, way.cause) == (20, 20, 12, "spike")
    assert (way.lr_factor, way.until, way.left_out) == (0.5, 22, (96, 160))
    plain = made(rollbacks=1).rollback(20, 12, "spike", (96, 160))
    assert (plain.lr_factor, plain.until, plain.left_out) == (1.0, 0, None)


def test_the_state_comes_back():
    numerics = made(skip_steps=3, spike_zscore=2.5, spike_window=4)
    for loss in (8.0, 12.0, 8.0, 12.0):
        numerics.passed(loss)
    assert numerics.spike(5, 14.0) is None
    fault = numerics.spike(5, 16.0)
    assert (fault.cause, fault.text) == ("spike", "step 5: loss 16 is 3.0 standard deviations above the mean of 4 steps")
    assert [numerics.failed(5), numerics.failed(6)] == ["skip", "skip"]
    other = made(skip_steps=3, spike_zscore=2.5, spike_window=4)
    other.restore(numerics.to_state())
    assert other.spike(7, 16.0).text == "step 7: loss 16 is 3.0 standard deviations above the mean of 4 steps"
    assert [other.failed(7), other.failed(8)] == ["skip", "end"]
    assert other.began == 5


@pytest.mark.parametrize("told", [3, {"in_row": -1}, {"in_row": "1"}, {"losses": 5}, {"losses": ["x"]}, {"began": 1.5}])
def test_a_state_of_another_form(told):
    with pytest.raises(CheckpointError, match="of another form"):
        made(skip_steps=1).restore({"numerics": told})
