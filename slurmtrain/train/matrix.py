"""Optimisers that look at a matrix as a whole, by torch.optim's classes: legal only where every global tensor is whole on its rank.

`config.optimizer.optimizer_fault` says so to the user. The global tensors of a fused parameter (q, k, v; gate, up) are matrices of
their own here: views of the parameter's memory, with state of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer as TorchOptimizer

from slurmtrain.boxes import Box, Part
from slurmtrain.config.training import OptimizerConfig
from slurmtrain.models.names import EMBEDDING, HEAD, POSITIONS
from slurmtrain.parallel.parameters import LocalParameter
from slurmtrain.train.elementwise import AdamW, Piece, States, decay_of

_MUON_MOMENTUM = 0.95
_TABLES = (EMBEDDING, POSITIONS, HEAD)


def state_part(kind: str, part: Part, number: int) -> Part:
    """Where the state `kind` of a parameter's part (its `number`-th) lies: as the part itself, but for Adafactor's two factors.

    `row_var` is [rows, 1] of the local matrix, `col_var` has one row for each part.
    """
    if kind not in ("row_var", "col_var"):
        return part
    rows, columns = part.global_shape
    shape, region = ((rows, 1), (part.region[0], (0, 1))) if kind == "row_var" else ((1, columns), ((number, number + 1), (0, columns)))
    return Part(part.name, shape, Box((0, 0), shape), region)


class _Views:
    """The pieces of some parameters as tensors that a torch optimiser holds; gradients are put in before each step."""

    def __init__(self, parameters: Sequence[LocalParameter], pieces: Sequence[Piece]) -> None:
        assert all(p.part is None or p.part.box.shape == p.part.global_shape for p in pieces), "configuration checks refuse this"
        self._parameters, self.pieces = parameters, pieces
        self.tensors = [piece.of(parameters[piece.index].tensor.detach()) for piece in pieces]

    def groups(self) -> list[dict[str, object]]:
        """One parameter group each."""
        return [{"params": [t], "weight_decay": p.weight_decay} for t, p in zip(self.tensors, self.pieces, strict=True)]

    def step(self, optimizer: TorchOptimizer, lr: float) -> None:
        for tensor, piece in zip(self.tensors, self.pieces, strict=True):
            parameter = self._parameters[piece.index]
            assert tensor.data_ptr() == piece.of(parameter.tensor).data_ptr(), f"{parameter.name}: its values have moved"
            tensor.grad = piece.of(parameter.grad)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        for tensor in self.tensors:
            tensor.grad = None


def _every_part(parameters: Sequence[LocalParameter], indices: Sequence[int], config: OptimizerConfig) -> list[Piece]:
    return [Piece(i, decay_of(parameters[i], part, config), part) for i in indices for part in parameters[i].parts]


class Muon:
    """Orthogonalised momentum of the layers' matrices (Jordan et al. 2024), AdamW for vectors, embeddings and the head.

    Updates are scaled by 0.2 sqrt(max(rows, columns)), so that one learning rate fits both (Liu et al. 2025, section 2.2).
    """

    def __init__(self, parameters: Sequence[LocalParameter], config: OptimizerConfig) -> None:
        matrices = [i for i, p in enumerate(parameters) if p.tensor.ndim == 2 and not any(part.name in _TABLES for part in p.parts)]
        self._rest = AdamW(parameters, config, [i for i in range(len(parameters)) if i not in matrices])
        self._momentum = [torch.zeros_like(p.tensor) if i in matrices else None for i, p in enumerate(parameters)]
        self._views = _Views(parameters, _every_part(parameters, matrices, config))
        self._muon = _muon(self._views, config) if self._views.pieces else None
        for tensor, piece in zip(self._views.tensors, self._views.pieces, strict=True):
            assert self._muon is not None
            self._muon.state[tensor]["momentum_buffer"] = piece.of(_there(self._momentum[piece.index]))

    @property
    def updates(self) -> int:
        """Updates made so far."""
        return self._rest.updates

    @updates.setter
    def updates(self, count: int) -> None:
        self._rest.updates = count

    def states(self) -> States:
        """Momentum of the matrices, AdamW's moments of the rest."""
        return {"momentum": self._momentum, **self._rest.states()}

    def step(self, lr: float) -> None:
        """Update every parameter from its gradient."""
        self._rest.step(lr)
        if self._muon is not None:
            self._views.step(self._muon, lr)


def _muon(views: _Views, config: OptimizerConfig) -> TorchOptimizer:
    return torch.optim.Muon(views.groups(), lr=config.lr, momentum=config.momentum or _MUON_MOMENTUM, adjust_lr_fn="match_rms_adamw")


class Adafactor:
    """Factored second moments, no first (Shazeer and Stern 2018), with torch's defaults; `betas` and `eps` are not used."""

    def __init__(self, parameters: Sequence[LocalParameter], config: OptimizerConfig) -> None:
        tensors = [p.tensor for p in parameters]
        self._rows = [t.new_zeros(t.shape[0], 1) if t.ndim == 2 else None for t in tensors]
        self._columns = [t.new_zeros(len(p.parts), t.shape[1]) if (t := p.tensor).ndim == 2 else None for p in parameters]
        self._variances = [torch.zeros_like(t) if t.ndim == 1 else None for t in tensors]
        self._views = _Views(parameters, _every_part(parameters, range(len(parameters)), config))
        self._counts = [torch.zeros(()) for _ in self._views.pieces]
        self._adafactor = torch.optim.Adafactor(self._views.groups(), lr=config.lr) if self._views.pieces else None
        self._updates = 0
        self._give_state(parameters)

    def _give_state(self, parameters: Sequence[LocalParameter]) -> None:
        for tensor, piece, count in zip(self._views.tensors, self._views.pieces, self._counts, strict=True):
            assert self._adafactor is not None
            assert piece.part is not None
            number, state = parameters[piece.index].parts.index(piece.part), self._adafactor.state[tensor]
            state["step"] = count
            for kind, kept in (("row_var", self._rows), ("col_var", self._columns), ("variance", self._variances)):
                if (whole := kept[piece.index]) is not None:
                    state[kind] = Piece(0, 0.0, state_part(kind, piece.part, number)).of(whole)

    @property
    def updates(self) -> int:
        """Updates made so far."""
        return self._updates

    @updates.setter
    def updates(self, count: int) -> None:
        self._updates = count
        for one in self._counts:
            one.fill_(count)

    def states(self) -> States:
        """Factors of the matrices' second moments, second moments of vectors."""
        return {"row_var": self._rows, "col_var": self._columns, "variance": self._variances}

    def step(self, lr: float) -> None:
        """Update every parameter from its gradient."""
        self._updates += 1
        if self._adafactor is not None:
            self._views.step(self._adafactor, lr)


def _there(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor
