"""The loss scale's rules: halve, double, stop at the minimum, go on from a checkpoint; and what is refused before it starts."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from slurmtrain.config.training import LossScale
from slurmtrain.train.scaler import LossScaler


def played(scaler, verdicts):
    """Scale after each verdict: True overflowed."""
    scales = []
    for overflow in verdicts:
        if overflow:
            assert scaler.overflowed()
        else:
            scaler.passed()
        scales.append(scaler.scale)
    return scales


def test_halves_on_overflow_and_doubles_after_clean_steps_in_a_row():
    scaler = LossScaler(LossScale(initial=64.0, growth_steps=3))
    assert played(scaler, [False, False, True, False, False, False, False]) == [64, 64, 32, 32, 32, 64, 64]


def test_ends_at_the_minimum():
    scaler = LossScaler(LossScale(initial=8.0, minimum=3.0))
    assert played(scaler, [True, True]) == [4.0, 3.0]
    assert not scaler.overflowed()
    assert scaler.scale == 3.0


def test_doubling_stays_finite():
    scaler = LossScaler(LossScale(initial=1.0, growth_steps=1))
    assert math.isfinite(played(scaler, [False] * 3000)[-1])


@pytest.mark.parametrize("stopped_after", range(7))
def test_resumed_at_any_point_goes_on_as_if_never_stopped(stopped_after):
    # transformers#34053: the scale jumped back to its first value; fairseq2#1346: a resume before the first step failed
    verdicts = [True, False, False, True, False, False, False]
    config = LossScale(initial=256.0, growth_steps=2)
    whole = played(LossScaler(config), verdicts)
    before, after = LossScaler(config), LossScaler(config)
    first = played(before, verdicts[:stopped_after])
    after.restore({"v": 1, **before.state()})
    assert first + played(after, verdicts[stopped_after:]) == whole


def test_a_checkpoint_of_another_dtype_changes_nothing():
    scaler = LossScaler(LossScale(initial=256.0))
    scaler.restore({"v": 1, "position": 3})
    assert scaler.state() == {"loss_scale": 256.0, "loss_scale_clean": 0}


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, -1.0, 0.0])
@pytest.mark.parametrize("key", ["initial", "minimum"])
def test_bad_values_are_refused(key, bad):  # DeepSpeed#7889
    with pytest.raises(ValidationError):
        LossScale(**{key: bad})
