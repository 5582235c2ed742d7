"""The growing batch against a run that is played step by step, sample by sample."""

from __future__ import annotations

import pytest

from slurmtrain.config.training import BatchRamp, TrainingConfig
from slurmtrain.train.ramp import global_batch_at, samples_after


def training(batch, ramp=None):
    return TrainingConfig(steps=1, sequence_length=8, global_batch=batch, batch_ramp=ramp)


def played(batch, start, increment, samples, steps):
    """Megatron-LM's rule, applied to the samples consumed so far: one increment for each equal share of the samples."""
    sizes, consumed, shares = [], 0, (batch - start) // increment
    for _ in range(steps):
        sizes.append(min(batch, start + increment * (consumed * shares // samples)))
        consumed += sizes[-1]
    return sizes


@pytest.mark.parametrize(
    ("batch", "start", "increment", "samples"),
    [(8, 2, 2, 100), (8, 2, 2, 7), (64, 8, 8, 1000), (64, 8, 8, 30), (12, 4, 8, 1), (96, 32, 16, 333), (16, 15, 1, 1000)],
)
def test_equals_the_run_played_sample_by_sample(batch, start, increment, samples):
    config = training(batch, BatchRamp(start=start, increment=increment, samples=samples))
    sizes = played(batch, start, increment, samples, steps=200)
    assert [global_batch_at(step, config) for step in range(1, 201)] == sizes
    assert [samples_after(steps, config) for steps in range(201)] == [sum(sizes[:steps]) for steps in range(201)]
    assert sizes[-1] == batch


def test_without_a_ramp_every_step_is_alike():
    assert global_batch_at(10**9, training(8)) == 8
    assert samples_after(10**9, training(8)) == 8 * 10**9
