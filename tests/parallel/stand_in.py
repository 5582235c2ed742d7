"""A small module with the interface of `parallel.decoder.Stage`: what pipelines are tested with, and the same as one process.

The first values of a layer come from its number alone, so that any cut of the layers starts from the same model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from slurmtrain.config.plan import Plan

VOCAB, HIDDEN, LENGTH = 23, 8, 6


class Layer(nn.Module):
    """Residual: a norm, two linears; where documents are separate their numbers matter."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(HIDDEN)
        self.up = nn.Linear(HIDDEN, 2 * HIDDEN)
        self.down = nn.Linear(2 * HIDDEN, HIDDEN, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_SBD: Tensor, documents_BT: Tensor | None) -> Tensor:
        h = functional.gelu(self.up(self.norm(x_SBD)))
        if documents_BT is not None:
            h = h * torch.cos(documents_BT.t()[..., None].to(h.dtype))
        return x_SBD + self.dropout(self.down(h))


class StandIn(nn.Module):
    """Embedding where first, layers, norm and head with the loss where last."""

    def __init__(self, layers: Sequence[int], *, first: bool, last: bool, dropout: float = 0.0, tied: bool = False) -> None:
        super().__init__()
        self.embedding = seeded(100, nn.Embedding(VOCAB, HIDDEN)) if first else None
        self.layers = nn.ModuleDict({str(layer): seeded(layer, Layer(dropout)) for layer in layers})
        self.norm = seeded(101, nn.RMSNorm(HIDDEN)) if last else None
        own_head = last and not (tied and first)
        self.head = seeded(100 if tied else 102, nn.Embedding(VOCAB, HIDDEN)) if own_head else None

    def forward(
        self, x: Tensor, labels_BT: Tensor | None = None, positions_BT: Tensor | None = None, documents_BT: Tensor | None = None
    ) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x).transpose(0, 1).contiguous()
            if positions_BT is not None:
                x = x + torch.sin(positions_BT.t()[..., None].to(x.dtype))
        for layer in self.layers.values():
            x = layer(x, documents_BT)
        if self.norm is None:
            return x
        weight = self.embedding.weight if self.head is None else self.head.weight
        return chunked_loss(self.norm(x), weight, labels_BT)


def chunked_loss(x_SBD: Tensor, weight: Tensor, labels_BT: Tensor) -> Tensor:
    """Two positions at a time: the weight is used in several places of one pass."""
    losses = [
        functional.cross_entropy((x @ weight.t()).flatten(0, 1).float(), labels.flatten(), reduction="sum", ignore_index=-100)
        for x, labels in zip(x_SBD.split(2), labels_BT.t().split(2), strict=True)
    ]
    return torch.stack(losses).sum()


def seeded(seed: int, module: nn.Module) -> nn.Module:
    """First values from a number."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3 + (parameter.ndim == 1))
    return module


def stages_here(plan: Plan, index: int, *, dropout: float = 0.0, tied: bool = False) -> list[StandIn]:
    """The stages of a pipeline rank."""
    last = len(plan.stages) - 1
    return [
        StandIn(plan.stages[number], first=number == 0, last=number == last, dropout=dropout, tied=tied) for number in plan.stages_of(index)
    ]


def named(stages: Iterable[nn.Module]) -> dict[str, nn.Parameter]:
    """Parameters of several stages by name; a name is in one stage alone."""
    return {name: parameter for stage in stages for name, parameter in stage.named_parameters()}
