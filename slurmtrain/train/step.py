"""One training step: forward and backward, one reduction over the world, one factor for all gradients, update.

The reduction is a float64 vector, summed in the same order every time. It carries this rank's share of the gradient norm, the loss,
the valid tokens, whether something is not finite, what ranks were asked for (`stopping`), and what else wants to be summed
(`passengers`); so all ranks decide alike, and reading its result is the only time in a step that the host waits for the device.

The backward pass runs on loss_sum * loss_scale / (places for tokens in the global batch), which every rank knows beforehand. How many
of these have a label, and the norm that clipping needs, come out of the reduction: the one factor puts all three right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from slurmtrain.errors import DataError
from slurmtrain.parallel.batch import StepBatch
from slurmtrain.parallel.parameters import LocalParameter, norm_and_soundness, scale_gradients
from slurmtrain.train.drills import Drills
from slurmtrain.train.ema import Average
from slurmtrain.train.numerics import Fault, Numerics
from slurmtrain.train.optimizer import Optimizer
from slurmtrain.train.scaler import LossScaler
from slurmtrain.train.stopping import Heard, StopFlag, heard

_CLIP_EPS = 1e-6
"""As in torch.nn.utils.clip_grad_norm_."""


class Trained(Protocol):
    """What a step needs of `parallel.apply.Built`. `counts_loss`: this rank's loss and tokens count in sums over the world."""

    @property
    def parameters(self) -> Sequence[LocalParameter]: ...

    @property
    def counts_loss(self) -> bool: ...

    def forward_backward(self, batch: StepBatch, scale: float) -> Tensor:
        """Gradients of loss_sum * scale, summed over all axes; the loss sum of this rank's tokens, float64, unscaled."""

    def valid_tokens(self, batch: StepBatch) -> Tensor:
        """How many of this rank's tokens have a loss; int64, on the device."""

    def publish(self) -> None:
        """Let the modules follow the parameters' values."""


@dataclass(frozen=True)
class StepResult:
    """What all ranks know after a step. `loss`: mean over the valid tokens of the global batch; `grad_norm`: before clipping.

    `tokens`: valid ones, counted once; `scale`: of the loss in this step; `skipped`: nothing was updated, for it overflowed or `fault`.
    `heard`: what all ranks act on at the end of this step. `passengers`: their sums over the world. `own_loss`: this rank's mean alone,
    None where it counts no token.
    """

    loss: float
    grad_norm: float
    lr: float
    tokens: int
    scale: float
    skipped: bool
    heard: Heard
    passengers: list[float]
    own_loss: float | None
    fault: Fault | None = None


@dataclass(frozen=True)
class _Sums:
    """Of the reduction over the world. `broken`: ranks that see what is not finite; `norm`: of the gradients as they are.

    `own_loss`: before it.
    """

    norm: float
    loss: float
    tokens: int
    broken: int
    heard: Heard
    passengers: list[float]
    own_loss: float | None


def clip_factor(norm: float, limit: float) -> float:
    """What gradients are multiplied by so that their norm is at most `limit`.

    >>> clip_factor(0.5, 1.0), round(clip_factor(4.0, 1.0), 6)
    (1.0, 0.25)
    """
    return min(1.0, limit / (norm + _CLIP_EPS))


class Step:
    """Trains on one batch.

    `lr_at`: the learning rate of an update, counted from 1. `data_size`: ranks that have different samples (dp): of so many batches a
    global batch is made. `norm_power`: of the norm that `clip_norm` bounds, may be inf. `scaler`: fp16's. `numerics`: knows which
    losses are spikes. `phase`: times what runs inside it, by name: forward_backward, reduction (the wait for the slowest rank),
    optimizer, publish.
    """

    def __init__(
        self,
        built: Trained,
        optimizer: Optimizer,
        *,
        lr_at: Callable[[int], float],
        clip_norm: float,
        flag: StopFlag,
        world: dist.ProcessGroup | None,
        data_size: int,
        norm_power: float = 2.0,
        scaler: LossScaler | None = None,
        average: Average | None = None,
        numerics: Numerics | None = None,
        phase: Callable[[str], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._built, self._optimizer, self._lr_at, self._average = built, optimizer, lr_at, average
        self._clip_norm, self._power, self._data_size = clip_norm, norm_power, data_size
        self._flag, self._world, self._scaler, self._phase = flag, world, scaler, phase
        self._numerics = numerics
        self.drills: Drills | None = None
        """Faults on purpose."""

    def __call__(self, number: int, batch: StepBatch, passengers: Sequence[float] = (), *, lr_factor: float = 1.0) -> StepResult:
        """Step `number` on this rank's share of the global batch. `lr_factor`: of the schedule's learning rate.

        Nothing is updated where the result is `skipped`. Raises DataError, on all ranks alike and before anything is updated, where no
        token of the global batch has a label.
        """
        scale = self._scaler.scale if self._scaler else 1.0
        places = batch.tokens_NT.numel() * self._data_size
        with self._phase("forward_backward"):
            if self.drills is not None:
                self.drills.before(number)
            loss_sum = self._built.forward_backward(batch, scale / places)
            if self.drills is not None:
                self.drills.gradients(number)
        with self._phase("reduction"):
            sums = self._reduced(loss_sum, batch, passengers)
        if sums.tokens == 0:
            raise DataError(f"step {number}: no token of the global batch has a label, so there is no loss: look at the data's loss marks")
        mean, unscaled = sums.loss / sums.tokens, places / sums.tokens / scale
        norm, lr = sums.norm * unscaled, self._lr_at(self._optimizer.updates + 1) * lr_factor
        broken = sums.broken > 0 or not math.isfinite(norm) or not math.isfinite(mean)
        if broken:
            fault = self._broken(f"step {number}: loss {mean:g}, gradient norm {norm:g} ({sums.broken} ranks see what is not finite)")
        else:
            fault = self._numerics.spike(number, mean) if self._numerics is not None else None
        skipped = broken or fault is not None
        if not skipped:
            self._update(unscaled * clip_factor(norm, self._clip_norm), lr)
            if self.drills is not None:
                self.drills.after(number)
        return StepResult(mean, norm, lr, sums.tokens, scale, skipped, sums.heard, sums.passengers, sums.own_loss, fault)

    def _broken(self, text: str) -> Fault | None:
        """Lower the loss scale; a fault where there is none to lower."""
        if self._scaler is None:
            return Fault("nonfinite", text)
        if self._scaler.overflowed():
            return None
        return Fault("nonfinite", f"{text}, and the loss scale is at its minimum, {self._scaler.scale:g}")

    def _update(self, factor: float, lr: float) -> None:
        with self._phase("optimizer"):
            if factor != 1.0:
                scale_gradients(self._built.parameters, factor)
            self._optimizer.step(lr)
            if self._average is not None:
                self._average.update()
        with self._phase("publish"):
            self._built.publish()
        if self._scaler is not None:
            self._scaler.passed()

    def _reduced(self, loss_sum: Tensor, batch: StepBatch, passengers: Sequence[float]) -> _Sums:
        share, sound = norm_and_soundness(self._built.parameters, self._power)
        here = torch.stack([loss_sum, self._built.valid_tokens(batch).to(loss_sum.dtype)]) * self._built.counts_loss
        broken = (loss_sum.isfinite() & sound).logical_not().to(share.dtype)
        known = torch.tensor([*self._flag.one_hot(), *passengers], dtype=share.dtype).to(share.device, non_blocking=True)
        vector = torch.cat([share[None], here, broken[None], known])
        if self._world is not None:
            if math.isinf(self._power):
                dist.all_reduce(share, op=dist.ReduceOp.MAX, group=self._world)
            dist.all_reduce(vector, group=self._world)
        own_loss, own_tokens, largest, summed, loss, tokens, bad, *flags = torch.cat([here, share[None], vector]).tolist()
        norm = largest if math.isinf(self._power) else _root(summed, self._power)
        riders, own = flags[StopFlag.WIDTH :], own_loss / own_tokens if own_tokens else None
        return _Sums(norm, loss, int(tokens), int(bad), heard(flags[: StopFlag.WIDTH]), riders, own)


def _root(summed: float, power: float) -> float:
    """The norm from the sum of |g|^power."""
    return math.pow(summed, 1.0 / power) if summed >= 0 else math.nan
