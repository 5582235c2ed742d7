"""AdamW over local tensors, and the learning rate of a step.

torch's functional AdamW on plain tensors: its class would bring in the compiler at start (a second per rank), and over FSDP's
DTensors costs host time per parameter. The update is torch's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.optim.adamw import adamw

from slurmtrain.config.training import OptimizerConfig
from slurmtrain.parallel.parameters import LocalParameter


def lr_at(step: int, config: OptimizerConfig, steps: int) -> float:
    """Learning rate of a step, counted from 1: linear warm-up, then half a cosine down to min_lr, then min_lr.

    The peak is reached at step `warmup_steps`, min_lr at `total_steps` (default: `steps`, the end of training).
    """
    warmup, end = config.warmup_steps, config.total_steps or steps
    if step <= warmup:
        return config.lr * step / warmup
    progress = min(1.0, (step - warmup) / (end - warmup)) if end > warmup else 1.0
    return config.min_lr + 0.5 * (config.lr - config.min_lr) * (1.0 + math.cos(math.pi * progress))


class AdamW:
    """Decoupled weight decay on matrices and embeddings, none on norms (Loshchilov and Hutter 2019, algorithm 2).

    `moments[i]` belongs to `parameters[i]`: (exp_avg, exp_avg_sq), of the local tensor's shape. They exist from the start, so that
    a checkpoint can fill them. `updates` counts the steps taken.
    """

    def __init__(self, parameters: Sequence[LocalParameter], config: OptimizerConfig) -> None:
        self._parameters, self._config = tuple(parameters), config
        self.moments = [(torch.zeros_like(p.tensor), torch.zeros_like(p.tensor)) for p in parameters]
        self._counts = [torch.tensor(0.0) for _ in parameters]
        decayed = [i for i, p in enumerate(parameters) if p.decays]
        plain = [i for i, p in enumerate(parameters) if not p.decays]
        self._groups = [(decayed, config.weight_decay), (plain, 0.0)]

    @property
    def updates(self) -> int:
        """Steps taken so far."""
        return int(self._counts[0]) if self._counts else 0

    @updates.setter
    def updates(self, count: int) -> None:
        for each in self._counts:
            each.fill_(count)

    def step(self, lr: float) -> None:
        """Update every parameter from its gradient."""
        beta1, beta2 = self._config.betas
        for indices, decay in self._groups:
            if not indices:
                continue
            chosen = [self._parameters[i] for i in indices]
            adamw(
                [p.tensor for p in chosen],
                [p.grad for p in chosen],
                [self.moments[i][0] for i in indices],
                [self.moments[i][1] for i in indices],
                [],
                [self._counts[i] for i in indices],
                foreach=True,
                amsgrad=False,
                maximize=False,
                beta1=beta1,
                beta2=beta2,
                lr=lr,
                weight_decay=decay,
                eps=self._config.eps,
            )
