"""Mean loss over held-out data: of every set the loss summed over its tokens, over all batches and ranks, by the number of tokens.

Means of batches are never averaged: batches of 1 and 9 tokens with means 2 and 90 / 9 weigh 1 and 9. Every rank makes the same number
of passes, whatever its share holds. One small reduction after each batch carries what was asked of any rank meanwhile, so that an
evaluation never keeps a run from stopping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from slurmtrain.clock import Clock
from slurmtrain.errors import DataError
from slurmtrain.parallel.batch import StepBatch
from slurmtrain.telemetry.exitfile import StopReason
from slurmtrain.telemetry.heartbeat import Heart, SilentHeart
from slurmtrain.train.stopping import StopFlag, heard


class Evaluated(Protocol):
    """What evaluates a batch: `parallel.apply.Built`."""

    @property
    def counts_loss(self) -> bool: ...

    def evaluate(self, batch: StepBatch) -> Tensor:
        """Sum of the loss over this rank's tokens."""

    def valid_tokens(self, batch: StepBatch) -> Tensor:
        """How many of this rank's tokens have a loss."""


@dataclass(frozen=True)
class Evaluation:
    """One set. `loss`: mean over `tokens`."""

    name: str
    loss: float
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Interrupted:
    """An evaluation that all ranks left: what was asked of one of them."""

    stop: StopReason | None
    disowned: bool


class Evaluator:
    """`sets`: name to what gives the batches of one evaluation anew, as many on every rank. `heart`: beats with each batch."""

    def __init__(
        self,
        built: Evaluated,
        sets: Mapping[str, Callable[[], Iterable[StepBatch]]],
        *,
        flag: StopFlag,
        world: dist.ProcessGroup | None,
        device: torch.device,
        clock: Clock,
        heart: Heart | None = None,
    ) -> None:
        self._built, self._sets, self._flag, self._heart = built, dict(sets), flag, heart or SilentHeart()
        self._world, self._device, self._clock = world, device, clock

    def __call__(self) -> list[Evaluation] | Interrupted:
        """Evaluate every set, in the order of their names. Collective. Raises DataError, on all ranks, for a set without a token."""
        results: list[Evaluation] = []
        for name in sorted(self._sets):
            one = self._one(name)
            if isinstance(one, Interrupted):
                return one
            results.append(one)
        return results

    def _one(self, name: str) -> Evaluation | Interrupted:
        start, loss, tokens = self._clock.monotonic(), 0.0, 0
        for batch in self._sets[name]():
            self._heart.beat()
            batch_loss, batch_tokens, *flags = self._reduced(batch)
            asked = heard(flags)
            if asked.stop or asked.disowned:
                return Interrupted(asked.stop, asked.disowned)
            loss, tokens = loss + batch_loss, tokens + int(batch_tokens)
        if tokens == 0:
            raise DataError(f"evaluation set {name!r}: no token in it has a loss: is it shorter than one sample, or are there no answers?")
        return Evaluation(name, loss / tokens, tokens, self._clock.monotonic() - start)

    def _reduced(self, batch: StepBatch) -> list[float]:
        loss, tokens = self._built.evaluate(batch), self._built.valid_tokens(batch)
        numbers = torch.stack([loss.double(), tokens.double()])
        if not self._built.counts_loss:
            numbers = torch.zeros_like(numbers)
        asked = torch.tensor(self._flag.one_hot(), dtype=torch.float64).to(self._device, non_blocking=True)
        vector = torch.cat([numbers, asked])
        if self._world is not None:
            dist.all_reduce(vector, group=self._world)
        values: list[float] = vector.tolist()
        return values
