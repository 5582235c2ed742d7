"""What a run has to remember besides its tensors and its place in the data; it travels in the checkpoint's plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slurmtrain.train.target import TargetState


@dataclass
class Marks:
    """`gpu_s`: seconds of training times devices, of all attempts; `evaluated`: the last step after which sets were evaluated."""

    gpu_s: float = 0.0
    evaluated: int | None = None
    target: TargetState = field(default_factory=TargetState)

    def to_state(self) -> dict[str, Any]:
        return {"gpu_seconds": self.gpu_s, "evaluated": self.evaluated, "target": self.target.to_json()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's values; one of the first release has none."""
        evaluated = state.get("evaluated")
        self.gpu_s = float(state.get("gpu_seconds", 0.0))
        self.evaluated = None if evaluated is None else int(evaluated)
        self.target = TargetState.from_json(state.get("target") or {})
