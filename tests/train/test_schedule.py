"""Learning rates against closed forms, worked out by hand."""

from __future__ import annotations

import pytest

from slurmtrain.config.training import OptimizerConfig
from slurmtrain.train.schedule import lr_at

BASE = {"lr": 1.0, "min_lr": 0.1, "warmup_steps": 4}


def rates(updates, steps, **more):
    config = OptimizerConfig(**{**BASE, **more})
    return [lr_at(update, config, steps) for update in updates]


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd", "inverse-sqrt", "constant"])
def test_all_warm_up_alike(schedule):
    assert rates((1, 2, 4), 40, schedule=schedule) == pytest.approx([0.25, 0.5, 1.0], rel=1e-12)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("cosine", {6: 0.1 + 0.9 * 0.853553390593, 8: 0.55, 12: 0.1, 40: 0.1}),  # (1 + cos(pi / 4)) / 2, half, end, past it
        ("linear", {5: 0.8875, 6: 0.775, 8: 0.55, 12: 0.1, 40: 0.1}),
        ("inverse-sqrt", {9: 2 / 3, 16: 0.5, 400: 0.1, 1000: 0.1}),  # sqrt(4 / 9), sqrt(4 / 16), sqrt(4 / 400), the floor
        ("constant", {5: 1.0, 12: 1.0, 40: 1.0}),
    ],
)
def test_after_the_warm_up(schedule, expected):
    assert rates(expected, 12, schedule=schedule) == pytest.approx(list(expected.values()), rel=1e-10)


def test_wsd_stays_and_then_falls_over_a_tenth_or_what_is_said():
    assert rates((5, 90, 91, 95, 100, 200), 100, schedule="wsd") == pytest.approx([1.0, 1.0, 0.91, 0.55, 0.1, 0.1])
    assert rates((6, 7, 8, 10), 10, schedule="wsd", decay_steps=4) == pytest.approx([1.0, 0.775, 0.55, 0.1])


def test_decay_may_end_before_training():
    assert rates((6, 8, 50), 100, schedule="cosine", total_steps=8) == pytest.approx([0.55, 0.1, 0.1])
    assert rates((6, 8, 50), 100, schedule="linear", total_steps=8) == pytest.approx([0.55, 0.1, 0.1])


def test_no_warm_up_starts_below_the_peak_and_only_warm_up_ends_at_it():
    assert rates((1,), 2, warmup_steps=0) == pytest.approx([0.55])
    assert rates((12,), 12, warmup_steps=12) == [1.0]
