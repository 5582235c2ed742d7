"""Optimisers that treat every number alone, so that any cut of a tensor will do: AdamW and SGD over local tensors.

torch's functional forms on plain tensors: the classes would bring in the compiler at start (a second per rank), and over FSDP's
DTensors cost host time per parameter. The update is torch's own, in its fused form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from slurmtrain.boxes import Part
from slurmtrain.config.training import OptimizerConfig
from slurmtrain.parallel.parameters import LocalParameter

States = Mapping[str, Sequence[Tensor | None]]


@dataclass(frozen=True)
class Piece:
    """What one update is applied to: parameter `index`, or (with `part`) the rows of it that are part of one global tensor."""

    index: int
    weight_decay: float
    part: Part | None = None

    def of(self, tensor: Tensor) -> Tensor:
        """The same piece of the parameter's values, gradient or state."""
        return tensor if self.part is None else tensor[tuple(slice(a, b) for a, b in self.part.region)]


def decay_of(parameter: LocalParameter, part: Part, config: OptimizerConfig) -> float:
    """Weight decay of a part: that of the configuration for matrices whose name no pattern of `no_decay` fits."""
    kept = parameter.decays and not any(fnmatchcase(part.name, pattern) for pattern in config.no_decay)
    return config.weight_decay if kept else 0.0


def pieces_of(parameters: Sequence[LocalParameter], config: OptimizerConfig) -> list[Piece]:
    """Whole parameters; one whose global tensors differ in their decay in as many pieces as it has parts."""
    pieces = []
    for index, parameter in enumerate(parameters):
        decays = [decay_of(parameter, part, config) for part in parameter.parts]
        if len(set(decays)) > 1:
            pieces += [Piece(index, decay, part) for decay, part in zip(decays, parameter.parts, strict=True)]
        else:
            pieces.append(Piece(index, decays[0] if decays else 0.0))
    return pieces


def by_decay(pieces: Sequence[Piece]) -> list[tuple[float, list[Piece]]]:
    """The pieces in groups of one weight decay."""
    return [(decay, [p for p in pieces if p.weight_decay == decay]) for decay in dict.fromkeys(p.weight_decay for p in pieces)]


class AdamW:
    """Decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2) of the parameters that are `chosen` by index (default: all)."""

    def __init__(self, parameters: Sequence[LocalParameter], config: OptimizerConfig, chosen: Sequence[int] | None = None) -> None:
        self._parameters, self._config = tuple(parameters), config
        mine = set(range(len(parameters)) if chosen is None else chosen)
        self._first, self._second = ([torch.zeros_like(p.tensor) if i in mine else None for i, p in enumerate(parameters)] for _ in "12")
        self._groups = by_decay([piece for piece in pieces_of(parameters, config) if piece.index in mine])
        self._counts = [[torch.zeros((), device=parameters[p.index].tensor.device) for p in pieces] for _, pieces in self._groups]
        self._updates = 0

    @property
    def updates(self) -> int:
        """Updates made so far."""
        return self._updates

    @updates.setter
    def updates(self, count: int) -> None:
        self._updates = count
        for one in (one for counts in self._counts for one in counts):
            one.fill_(count)

    def states(self) -> States:
        """First and second moment of each parameter."""
        return {"exp_avg": self._first, "exp_avg_sq": self._second}

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update every parameter from its gradient."""
        (beta1, beta2), self._updates = self._config.betas, self._updates + 1
        for (decay, pieces), counts in zip(self._groups, self._counts, strict=True):
            adamw(
                [piece.of(self._parameters[piece.index].tensor) for piece in pieces],
                [piece.of(self._parameters[piece.index].grad) for piece in pieces],
                _cut(pieces, self._first),
                _cut(pieces, self._second),
                [],
                counts,
                fused=True,
                amsgrad=False,
                maximize=False,
                beta1=beta1,
                beta2=beta2,
                lr=lr,
                weight_decay=decay,
                eps=self._config.eps,
            )


class SGD:
    """Gradient descent with momentum as torch has it: v = momentum v + g + weight_decay w; w = w - lr v."""

    def __init__(self, parameters: Sequence[LocalParameter], config: OptimizerConfig) -> None:
        self._parameters, self._config = tuple(parameters), config
        self._velocity = [torch.zeros_like(p.tensor) for p in parameters] if config.momentum else None
        self._groups = by_decay(pieces_of(parameters, config))
        self.updates = 0

    def states(self) -> States:
        """The velocity, where there is momentum."""
        return {} if self._velocity is None else {"momentum": self._velocity}

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update every parameter from its gradient."""
        self.updates += 1
        for decay, pieces in self._groups:
            sgd(
                [piece.of(self._parameters[piece.index].tensor) for piece in pieces],
                [piece.of(self._parameters[piece.index].grad) for piece in pieces],
                [None] * len(pieces) if self._velocity is None else list(_cut(pieces, self._velocity)),
                fused=True,
                weight_decay=decay,
                momentum=self._config.momentum,
                lr=lr,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )


def _cut(pieces: Sequence[Piece], tensors: Sequence[Tensor | None]) -> list[Tensor]:
    found = [(piece, tensors[piece.index]) for piece in pieces]
    return [piece.of(tensor) for piece, tensor in found if tensor is not None]
