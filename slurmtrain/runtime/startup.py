"""What a rank's start took, by stage, from the birth of its process to the first thing it trains.

| stage | from - to |
|---|---|
| `python` | birth of the process; imports, torch's too |
| `mpi` | MPI's start, the seats, what was promised compared with what is found |
| `group` | device, store, process group (NCCL or gloo) |
| `build` | mesh, data, model, optimiser, first values |
| `load` | the checkpoint |
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal, Protocol

from slurmtrain.clock import Clock

Stage = Literal["python", "mpi", "group", "build", "load"]


class Passed(Protocol):
    """Told when a stage has ended."""

    def __call__(self, stage: Stage) -> None: ...


def unheard(stage: Stage) -> None:
    """For a start that nobody takes the time of."""


class Startup:
    """A stopwatch that began `age_s` ago; the stages add up to the time since then."""

    def __init__(self, clock: Clock, age_s: float) -> None:
        self._clock, self._at = clock, clock.monotonic() - age_s
        self.seconds: dict[Stage, float] = {}

    def passed(self, stage: Stage) -> None:
        """All since the last call was this stage's, which may come in several pieces."""
        now = self._clock.monotonic()
        self._add(stage, now - self._at)
        self._at = now

    def was(self, stage: Stage, within: Stage, seconds: float) -> None:
        """So much of what counts as `within` was this stage's."""
        self._add(within, -seconds)
        self._add(stage, seconds)

    def fields(self) -> dict[str, float]:
        """As they stand in the event `start`."""
        return {f"{stage}_s": round(max(0.0, seconds), 3) for stage, seconds in self.seconds.items()}

    def _add(self, stage: Stage, seconds: float) -> None:
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds


def process_age_s() -> float:
    """Seconds since this process was started; 0 where the system does not tell (Linux' /proc does, to a hundredth)."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
