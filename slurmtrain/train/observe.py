"""What one rank measures while it trains: phases, waits, memory, its own loss; without ever waiting for the device."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from slurmtrain.parallel.axis import Meter
from slurmtrain.train.metrics import Figures
from slurmtrain.train.phases import Phases

_WORK = ("forward_backward", "optimizer", "publish")
"""Phases in which a rank computes, besides waiting for others."""


class Pipeline(Protocol):
    """What knows how long a pipeline stood still: `parallel.pipeline.Runner`."""

    def take_bubble(self) -> float | None: ...


class Observer:
    """Gathers a step's figures. `meter`: in which all collectives of the mesh count their waits."""

    def __init__(self, pipeline: Pipeline, phases: Phases, meter: Meter, device: torch.device) -> None:
        self._pipeline, self._phases, self._meter, self._device = pipeline, phases, meter, device

    def take(self, step: int, own_loss: float | None) -> Figures:
        """Of the step that is over, with all that was done since: a checkpoint, an evaluation."""
        seconds, waited = self._phases.take(), self._meter.take()
        work = sum(seconds.get(phase, 0.0) for phase in _WORK) - sum(waited.values())
        return Figures(
            step=step,
            seconds=seconds,
            waited=waited,
            work_s=max(0.0, work),
            memory_bytes=peak_memory(self._device),
            loss=own_loss,
            bubble=self._pipeline.take_bubble(),
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
