"""The global batch of a step while it grows: a pure function of the step's number.

The samples of `batch_ramp.samples` fall into as many equal spans as the batch takes increments; a step has the batch of the span in
which its first sample lies (as Megatron-LM's rampup_batch_size does). `config.check_layout` sees to it that every size divides over
the ranks and is enough for the pipeline's schedule.

>>> from slurmtrain.config.training import BatchRamp
>>> training = TrainingConfig(steps=9, sequence_length=8, global_batch=6, batch_ramp=BatchRamp(start=2, increment=2, samples=10))
>>> [global_batch_at(step, training) for step in range(1, 8)], samples_after(6, training)
([2, 2, 2, 4, 6, 6, 6], 22)
"""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.config.training import TrainingConfig


def global_batch_at(step: int, training: TrainingConfig) -> int:
    """Sequences of a step, counted from 1, over the whole world."""
    for size, first, count, _ in _spans(training):
        if step < first + count:
            return size
    return training.global_batch


def samples_after(steps: int, training: TrainingConfig) -> int:
    """Samples that so many steps consume: the position of a run that was never told another batch."""
    done = position = 0
    for size, first, count, start in _spans(training):
        if steps < first + count:
            return start + (steps - first + 1) * size
        done, position = first + count - 1, start + count * size
    return position + (steps - done) * training.global_batch


def _spans(training: TrainingConfig) -> Iterator[tuple[int, int, int, int]]:
    """(batch, number of the first step, steps, samples before them) of each span that has a step."""
    ramp = training.batch_ramp
    if ramp is None:
        return
    spans, step, position = (training.global_batch - ramp.start) // ramp.increment, 1, 0
    for number in range(spans):
        size, end = ramp.start + number * ramp.increment, (number + 1) * ramp.samples
        count = max(0, -(-(end - position * spans) // (size * spans)))
        if count:
            yield size, step, count, position
        step, position = step + count, position + count * size
