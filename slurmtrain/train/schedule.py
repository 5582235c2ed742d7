"""The learning rate of an update: a pure function of how many updates there were, so that skipped steps do not advance it.

All schedules begin with a linear warm-up that reaches `lr` at update `warmup_steps`. What comes then, x being the share of
warmup_steps .. total_steps that is over (total_steps: default the end of training; past it x stays 1):

| schedule | learning rate |
|---|---|
| cosine | min_lr + (lr - min_lr) (1 + cos(pi x)) / 2 (Loshchilov and Hutter 2017, eq. 5, one period) |
| linear | lr + (min_lr - lr) x |
| wsd | lr, then linear to min_lr over the last decay_steps (Hu et al. 2024, MiniCPM, section 4; linear as in Hägele et al. 2024) |
| inverse-sqrt | lr sqrt(warmup_steps / update), never below min_lr (Vaswani et al. 2017, eq. 3) |
| constant | lr |
"""

from __future__ import annotations

import math

from slurmtrain.config.training import OptimizerConfig


def lr_at(update: int, config: OptimizerConfig, steps: int) -> float:
    """Learning rate of an update, counted from 1, of a training of so many steps.

    >>> config = OptimizerConfig(lr=1.0, min_lr=0.1, warmup_steps=2, schedule="linear")
    >>> [round(lr_at(update, config, steps=5), 6) for update in range(1, 7)]
    [0.5, 1.0, 0.7, 0.4, 0.1, 0.1]
    """
    if update <= config.warmup_steps:
        return config.lr * update / config.warmup_steps
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "inverse-sqrt":
        return max(config.min_lr, config.lr * math.sqrt(max(config.warmup_steps, 1) / update))
    return config.min_lr + (config.lr - config.min_lr) * _left(update, config, config.total_steps or steps)


def _left(update: int, config: OptimizerConfig, end: int) -> float:
    """What is left of lr - min_lr after the warm-up, from 1 down to 0."""
    if config.schedule == "wsd":
        return 1.0 - _share(update, end - decay_steps(config, end), end)
    x = _share(update, config.warmup_steps, end)
    return 1.0 - x if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * x))


def decay_steps(config: OptimizerConfig, end: int) -> int:
    """Length of wsd's decay: what is said, else a tenth; at most what the warm-up leaves.

    >>> decay_steps(OptimizerConfig(schedule="wsd"), 1000), decay_steps(OptimizerConfig(schedule="wsd", warmup_steps=3), 4)
    (100, 1)
    """
    return min(config.decay_steps or max(1, end // 10), max(0, end - config.warmup_steps))


def _share(update: int, start: int, end: int) -> float:
    """How much of start .. end is over, from 0 to 1."""
    return min(1.0, max(0.0, (update - start) / (end - start))) if end > start else 1.0
