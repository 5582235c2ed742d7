"""One training step: forward and backward, one reduction over the world, clipping, update.

The reduction is a float64 vector, summed in the same order every time. It carries the squared gradient norm, the loss, the tokens,
whether something is not finite, and why ranks were asked to stop; so all ranks decide alike, and reading its result is the only
time in a step that the host waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from slurmtrain.errors import NonFiniteError
from slurmtrain.parallel.apply import Built
from slurmtrain.parallel.parameters import scale_gradients, squared_norm
from slurmtrain.telemetry.exitfile import StopReason
from slurmtrain.train.optimizer import AdamW
from slurmtrain.train.stopping import StopFlag, agreed

_CLIP_EPS = 1e-6
"""As in torch.nn.utils.clip_grad_norm_."""


@dataclass(frozen=True)
class StepResult:
    """What all ranks know after a step. `loss`: mean over the tokens of the global batch; `grad_norm`: before clipping.

    `stop`: leave at the end of this step; `disowned`: the run has another owner.
    """

    loss: float
    grad_norm: float
    lr: float
    tokens: int
    stop: StopReason | None
    disowned: bool


def clip_factor(norm: float, limit: float) -> float:
    """What gradients are multiplied by so that their norm is at most `limit`.

    >>> clip_factor(0.5, 1.0), round(clip_factor(4.0, 1.0), 6)
    (1.0, 0.25)
    """
    return min(1.0, limit / (norm + _CLIP_EPS))


class Step:
    """Trains on one batch. `lr_at`: the learning rate of a step, counted from 1."""

    def __init__(
        self,
        built: Built,
        optimizer: AdamW,
        *,
        lr_at: Callable[[int], float],
        clip_norm: float,
        flag: StopFlag,
        world: dist.ProcessGroup | None,
    ) -> None:
        self._built, self._optimizer, self._lr_at = built, optimizer, lr_at
        self._clip_norm, self._flag, self._world = clip_norm, flag, world

    def __call__(self, number: int, tokens_NT: Tensor, labels_NT: Tensor) -> StepResult:
        """Step `number` on this rank's share of the global batch.

        Raises NonFiniteError on all ranks, before anything is updated.
        """
        loss_sum = self._built.forward_backward(tokens_NT, labels_NT)
        square, loss, count, broken, *stop, disowned = self._reduced(loss_sum, labels_NT.numel())
        norm, mean = math.sqrt(square) if square >= 0 else math.nan, loss / count
        if broken or not math.isfinite(norm) or not math.isfinite(mean):
            raise NonFiniteError(f"step {number}: loss {mean:g}, gradient norm {norm:g} ({broken:.0f} ranks see what is not finite)")
        factor = clip_factor(norm, self._clip_norm)
        if factor < 1.0:
            scale_gradients(self._built.parameters, factor)
        lr = self._lr_at(number)
        self._optimizer.step(lr)
        return StepResult(mean, norm, lr, int(count), agreed(stop), disowned > 0)

    def _reduced(self, loss_sum: Tensor, tokens: int) -> list[float]:
        square = squared_norm(self._built.parameters)
        counted = self._built.counts_loss
        numbers = torch.stack([square, loss_sum if counted else torch.zeros_like(loss_sum)])
        broken = numbers.isfinite().all().logical_not().to(numbers.dtype)
        known = torch.tensor([tokens * counted, *self._flag.one_hot()], dtype=numbers.dtype).to(numbers.device, non_blocking=True)
        vector = torch.cat([numbers, known[:1], broken[None], known[1:]])
        if self._world is not None:
            dist.all_reduce(vector, group=self._world)
        values: list[float] = vector.tolist()
        return values
