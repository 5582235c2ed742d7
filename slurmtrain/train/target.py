"""When a run has become as good as its job asks: a pure state machine over the values of one metric.

>>> goal = TargetConfig(metric="held-out", below=2.0, times=2)
>>> state = TargetState()
>>> for value in (1.9, 2.1, 1.8, 1.7, 1.6):
...     state, reached = seen(state, goal, value)
...     print(state.held, reached)
1 False
0 False
1 False
2 True
3 False
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from slurmtrain.config.training import TargetConfig
from slurmtrain.store.plain import number


@dataclass(frozen=True)
class TargetState:
    """`held`: values in a row that were below; `reached`: it was told already, and is told once in a run."""

    held: int = 0
    reached: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {"held": self.held, "reached": self.reached}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> TargetState:
        return cls(number(raw.get("held", 0)), bool(raw.get("reached", False)))


def seen(state: TargetState, goal: TargetConfig, value: float) -> tuple[TargetState, bool]:
    """The state after another value of the goal's metric, and whether this one reaches the goal. NaN is not below anything."""
    held = state.held + 1 if math.isfinite(value) and value < goal.below else 0
    now = not state.reached and held >= goal.times
    return replace(state, held=held, reached=state.reached or now), now


@dataclass(frozen=True)
class Cost:
    """What a run took so far. `train_s`: seconds that its attempts trained, `gpu_s`: of all devices, without work that was lost
    with a failure; `elapsed_s`: by the clock on the wall since its first attempt started, queues and repairs included.
    """

    tokens: int
    train_s: float
    gpu_s: float
    elapsed_s: float

    def to_fields(self) -> dict[str, Any]:
        hours = {"gpu_hours": round(self.gpu_s / 3600, 6)}
        return {"tokens": self.tokens, "train_s": round(self.train_s, 3), "elapsed_s": round(self.elapsed_s, 3)} | hours
