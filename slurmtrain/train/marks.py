"""What a run has to remember besides its tensors and its place in the data; it travels in the checkpoint's plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slurmtrain.config.training import TargetConfig
from slurmtrain.errors import CheckpointError, one_line
from slurmtrain.store.plain import number, seconds
from slurmtrain.train.target import TargetState


@dataclass
class Marks:
    """`goal`: the job's target, which `target` is the state of. `gpu_s`: seconds of training times devices, of all attempts;
    `evaluated`: the last step after which sets were evaluated; `metrics`: the newest loss, and the newest result of each set by its
    name, finite ones alone: by which the best checkpoints are kept.
    """

    goal: TargetConfig | None = None
    gpu_s: float = 0.0
    evaluated: int | None = None
    target: TargetState = field(default_factory=TargetState)
    metrics: dict[str, float] = field(default_factory=dict)

    def measured(self, name: str, value: float) -> None:
        """Remember a metric's newest value; one that is not finite takes the old one away."""
        self.metrics.pop(name, None)
        if math.isfinite(value):
            self.metrics[name] = value

    def to_state(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        target = {"target": self.target.to_json(), "target_of": self._goal()}
        return {"gpu_seconds": self.gpu_s, "evaluated": self.evaluated, **target, "metrics": dict(self.metrics)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's values; one of the first release has none. Of another goal nothing was reached yet.

        Raises CheckpointError for values of another form.
        """
        try:
            evaluated = state.get("evaluated")
            self.gpu_s = seconds(state.get("gpu_seconds", 0.0))
            self.evaluated = None if evaluated is None else number(evaluated)
            same = state.get("target_of", self._goal()) == self._goal()
            self.target = TargetState.from_json(state.get("target", {}) if same else {})
            self.metrics.clear()
            for name, value in state.get("metrics", {}).items():
                self.measured(str(name), float(value))
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise CheckpointError(f"what the checkpoint tells of its run is of another form: {one_line(str(error))}") from error

    def _goal(self) -> list[Any] | None:
        """What must be reached; whether the run ends there is no part of it."""
        return None if self.goal is None else [self.goal.metric, self.goal.below, self.goal.times]
