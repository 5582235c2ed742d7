"""The phases of a step: how long each took on this rank, under names that torch.profiler and Nsight Systems show.

| phase | what is in it | the heart says |
|---|---|---|
| `data` | waiting for the next batch | data |
| `forward_backward` | all passes over all micro-batches, with the reductions of gradients that they hide | step |
| `reduction` | the step's one reduction: waiting for the slowest rank | wait |
| `optimizer` | the update | step |
| `publish` | new values on their way to the modules: gathered, or cast | step |
| `checkpoint` | training stands still while a checkpoint is made | save |
| `evaluation` | | eval |

Waits for other ranks are counted apart, by mesh axis (`parallel.axis.Meter`); they lie inside these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch.autograd.profiler import record_function

from slurmtrain.parallel.axis import Meter
from slurmtrain.telemetry.heartbeat import Heart, Phase, SilentHeart

PHASES = ("data", "forward_backward", "reduction", "optimizer", "publish", "checkpoint", "evaluation")
HOST = frozenset({"data", "checkpoint", "evaluation"})
"""Phases that the host waits for itself; of the others the device's time counts."""
_BEATS: Mapping[str, Phase] = {"data": "data", "reduction": "wait", "checkpoint": "save", "evaluation": "eval"}
"""What the heart says of a phase; of all others: step."""


class Phases:
    """Times and names what is inside `at`, and lets the heart say so."""

    def __init__(self, device: torch.device, heart: Heart | None = None) -> None:
        self._heart = heart or SilentHeart()
        self._device, self._host = Meter(device), Meter(torch.device("cpu"))
        self._nvtx = device.type == "cuda"

    @contextmanager
    def at(self, phase: str) -> Iterator[None]:
        """Count what is inside as a phase."""
        meter = self._host if phase in HOST else self._device
        if self._nvtx:
            torch.cuda.nvtx.range_push(phase)
        try:
            with self._heart.at(_BEATS.get(phase, "step")), record_function(f"phase: {phase}"), meter.time(phase):
                yield
        finally:
            if self._nvtx:
                torch.cuda.nvtx.range_pop()

    def take(self) -> dict[str, float]:
        """Seconds by phase since the last call."""
        return {**self._host.take(), **self._device.take()}
