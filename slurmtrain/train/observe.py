"""What one rank measures while it trains: phases, waits, memory, its own loss; without ever waiting for the device."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from slurmtrain.parallel.axis import Meter
from slurmtrain.parallel.batch import StepBatch
from slurmtrain.parallel.parameters import LocalParameter
from slurmtrain.train.metrics import Figures
from slurmtrain.train.phases import Phases

_WORK = ("forward_backward", "optimizer")
"""Phases in which a rank computes, besides waiting for others."""


class Bubbled(Protocol):
    """What knows how long a pipeline stood still: `parallel.pipeline.Runner`."""

    def take_bubble(self) -> float | None: ...


class Observable(Protocol):
    """What is observed: `parallel.apply.Built`."""

    @property
    def parameters(self) -> Sequence[LocalParameter]: ...

    @property
    def counts_loss(self) -> bool: ...

    @property
    def runner(self) -> Bubbled: ...

    def forward_backward(self, batch: StepBatch, scale: float) -> Tensor: ...

    def evaluate(self, batch: StepBatch) -> Tensor: ...

    def valid_tokens(self, batch: StepBatch) -> Tensor: ...

    def publish(self) -> None: ...


class Observed:
    """A Built that keeps this rank's loss sum and tokens of the last step, in memory that the host may read after the step."""

    def __init__(self, built: Observable) -> None:
        self._built = built
        self._numbers: Tensor | None = None

    @property
    def parameters(self) -> Sequence[LocalParameter]:
        return self._built.parameters

    @property
    def counts_loss(self) -> bool:
        return self._built.counts_loss

    @property
    def runner(self) -> Bubbled:
        return self._built.runner

    def forward_backward(self, batch: StepBatch, scale: float) -> Tensor:
        loss_sum = self._built.forward_backward(batch, scale)
        if self.counts_loss:
            self._keep(torch.stack([loss_sum.double(), self.valid_tokens(batch).double()]))
        return loss_sum

    def evaluate(self, batch: StepBatch) -> Tensor:
        return self._built.evaluate(batch)

    def valid_tokens(self, batch: StepBatch) -> Tensor:
        return self._built.valid_tokens(batch)

    def publish(self) -> None:
        self._built.publish()

    def own_loss(self) -> float | None:
        """Mean over this rank's own tokens of the last step; None where it has none. After the host's wait for that step."""
        if self._numbers is None:
            return None
        loss, tokens = self._numbers.tolist()
        return loss / tokens if tokens else None

    def _keep(self, numbers: Tensor) -> None:
        """On a GPU a copy to page-locked memory, in the order of the stream: there when the step's reduction is."""
        if numbers.device.type != "cuda":
            self._numbers = numbers
            return
        if self._numbers is None:
            self._numbers = torch.empty(2, dtype=torch.float64, pin_memory=True)
        self._numbers.copy_(numbers, non_blocking=True)


class Observer:
    """Gathers a step's figures. `meter`: in which all collectives of the mesh count their waits."""

    def __init__(self, built: Observed, phases: Phases, meter: Meter, device: torch.device) -> None:
        self._built, self._phases, self._meter, self._device = built, phases, meter, device

    def take(self, step: int) -> Figures:
        """Of the step that is over, with all that was done since: a checkpoint, an evaluation."""
        seconds, waited = self._phases.take(), self._meter.take()
        work = sum(seconds.get(phase, 0.0) for phase in _WORK) - sum(waited.values())
        return Figures(
            step=step,
            seconds=seconds,
            waited=waited,
            work_s=max(0.0, work),
            memory_bytes=peak_memory(self._device),
            loss=self._built.own_loss(),
            bubble=self._built.runner.take_bubble(),
        )

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """What is inside is no training: its waits are not the step's."""
        waited = self._meter.take()
        with self._phases.at("evaluation"):
            yield
        self._meter.take()
        for name, seconds in waited.items():
            self._meter.add(name, seconds)


def peak_memory(device: torch.device) -> float:
    """Bytes: on a GPU the most that was allocated since the last call, on a CPU the most that the process ever had."""
    if device.type != "cuda":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
    peak = float(torch.cuda.max_memory_allocated(device))
    torch.cuda.reset_peak_memory_stats(device)
    return peak
