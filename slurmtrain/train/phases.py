"""The phases of a step: how long each took on this rank, under names that torch.profiler and Nsight Systems show.

| phase | what is in it |
|---|---|
| `data` | waiting for the next batch |
| `forward_backward` | all passes over all micro-batches, with the reductions of gradients that they hide |
| `reduction` | the step's one reduction: waiting for the slowest rank |
| `optimizer` | the update |
| `publish` | new values on their way to the modules: gathered, or cast |
| `checkpoint` | training stands still while a checkpoint is made |
| `evaluation` | |

Waits for other ranks are counted apart, by mesh axis (`parallel.axis.Meter`); they lie inside these.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.autograd.profiler import record_function

from slurmtrain.parallel.axis import Meter

PHASES = ("data", "forward_backward", "reduction", "optimizer", "publish", "checkpoint", "evaluation")
HOST = frozenset({"data", "checkpoint", "evaluation"})
"""Phases that the host waits for itself; of the others the device's time counts."""


class Phases:
    """Times and names what is inside `at`."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._host = Meter(device), Meter(torch.device("cpu"))
        self._nvtx = device.type == "cuda"

    @contextmanager
    def at(self, phase: str) -> Iterator[None]:
        """Count what is inside as a phase."""
        meter = self._host if phase in HOST else self._device
        if self._nvtx:
            torch.cuda.nvtx.range_push(phase)
        try:
            with record_function(f"phase: {phase}"), meter.time(phase):
                yield
        finally:
            if self._nvtx:
                torch.cuda.nvtx.range_pop()

    def take(self) -> dict[str, float]:
        """Seconds by phase since the last call."""
        return {**self._host.take(), **self._device.take()}
