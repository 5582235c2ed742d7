"""An exponential moving average of the weights: average = decay * average + (1 - decay) * weight after every update.

Kept over this rank's own share of the values, in fp32, and saved as `ema/<name>` beside them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slurmtrain.parallel.parameters import LocalParameter


class Average:
    """`values[i]` belongs to `parameters[i]`. It starts at the values that the parameters have when it is made or restarted."""

    def __init__(self, parameters: Sequence[LocalParameter], decay: float) -> None:
        self._parameters, self._decay = tuple(parameters), decay
        self.values = [p.tensor.detach().clone() for p in parameters]

    @torch.no_grad()
    def update(self) -> None:
        """Take in the values after an update."""
        torch._foreach_lerp_(self.values, [p.tensor for p in self._parameters], 1.0 - self._decay)

    @torch.no_grad()
    def restart(self) -> None:
        """Begin at the values of now: after first weights were loaded, or a checkpoint that holds no average."""
        torch._foreach_copy_(self.values, [p.tensor for p in self._parameters])
