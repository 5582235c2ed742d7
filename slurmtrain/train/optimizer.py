"""What a step and a checkpoint see of an optimiser, and which one a configuration means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from slurmtrain.config.training import OptimizerConfig
from slurmtrain.parallel.parameters import LocalParameter
from slurmtrain.train.elementwise import SGD, AdamW, States
from slurmtrain.train.matrix import Adafactor, Muon


class Optimizer(Protocol):
    """Changes the parameters' values from their gradients. `updates`: how often it did; a checkpoint sets it."""

    updates: int

    def states(self) -> States:
        """By kind, one tensor per parameter (None: it has none of this kind), there from the start, so that a checkpoint can fill it.

        Of the parameter's own shape, but for the kinds that `matrix.state_part` knows.
        """

    def step(self, lr: float) -> None:
        """Update every parameter from its gradient."""


_MAKERS: Mapping[str, Callable[[Sequence[LocalParameter], OptimizerConfig], Optimizer]] = {
    "adamw": AdamW,
    "sgd": SGD,
    "adafactor": Adafactor,
    "muon": Muon,
}


def make_optimizer(parameters: Sequence[LocalParameter], config: OptimizerConfig) -> Optimizer:
    """The optimiser that the configuration names, over this rank's parameters."""
    return _MAKERS[config.name](parameters, config)
