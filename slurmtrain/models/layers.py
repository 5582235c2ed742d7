"""Norms and activations, as the families have them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from slurmtrain.config.model import ModelConfig


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Computes x / sqrt(mean(x^2) + eps) * weight over the last dim (Zhang and Sennrich 2019, eq. 4)."""
    return functional.rms_norm(x, (x.shape[-1],), weight, eps)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up (Shazeer 2020, eq. 6)."""
    return functional.silu(gate) * up


def gelu(x: Tensor) -> Tensor:
    """GELU by tanh, as GPT-2 has it (Hendrycks and Gimpel 2016, section 2)."""
    return functional.gelu(x, approximate="tanh")


class RMSNorm(nn.Module):
    """`rms_norm` with its weight [width]."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class LayerNorm(nn.Module):
    """Layer normalisation (Ba et al. 2016) with weight and bias [width]."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, (x.shape[-1],), self.weight, self.bias, self.eps)


def norm_of(model: ModelConfig) -> RMSNorm | LayerNorm:
    """A norm over the residual stream, as the family has it."""
    kind = RMSNorm if model.traits.norm == "rms" else LayerNorm
    return kind(model.hidden, model.norm_eps)
