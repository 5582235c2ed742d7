"""Dynamic loss scale of fp16 (Micikevicius et al. 2018, section 3.2), as a state machine that knows no tensor.

Whether a step overflowed is the verdict of the step's reduction over the world, so that every rank moves its machine alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurmtrain.config.training import LARGEST_SCALE, LossScale
from slurmtrain.errors import CheckpointError, one_line


class LossScaler:
    """`scale`: what the loss of the next step is multiplied by; `clean`: steps in a row that did not overflow at it.

    >>> scaler = LossScaler(LossScale(initial=8.0, growth_steps=2, minimum=4.0))
    >>> scaler.passed(), scaler.passed(), scaler.scale
    (None, None, 16.0)
    >>> scaler.overflowed(), scaler.overflowed(), scaler.overflowed(), scaler.scale
    (True, True, False, 4.0)
    """

    def __init__(self, config: LossScale) -> None:
        self._config = config
        self.scale, self.clean = config.initial, 0

    def passed(self) -> None:
        """A step whose gradients were finite."""
        self.clean += 1
        if self.clean >= self._config.growth_steps:
            self.scale, self.clean = min(2.0 * self.scale, LARGEST_SCALE), 0

    def overflowed(self) -> bool:
        """A step whose gradients were not. False: the scale was at its minimum already, nothing is left to try."""
        if self.scale <= self._config.minimum:
            return False
        self.scale, self.clean = max(0.5 * self.scale, self._config.minimum), 0
        return True

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {"loss_scale": self.scale, "loss_scale_clean": self.clean}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's values; one that has none (another dtype wrote it) changes nothing.

        Raises CheckpointError for values that no scaler has.
        """
        if "loss_scale" not in state:
            return
        scale, clean = state["loss_scale"], state.get("loss_scale_clean")
        if type(scale) not in {int, float} or not 0 < scale <= LARGEST_SCALE or type(clean) is not int or clean < 0:
            raise CheckpointError(f"the checkpoint tells a loss scale that none is: {one_line(f'{scale!r}, {clean!r}')}")
        self.scale, self.clean = float(scale), clean
