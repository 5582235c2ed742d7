"""Rotary positions (Su et al. 2021, RoFormer) and their stretching beyond the length of the first training."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from slurmtrain.config.model import ModelConfig, RopeScaling

Rotary = tuple[Tensor, Tensor]
"""cos and sin, each [T, E/2], or [B, 1, T, E/2] where positions differ between sequences; fp32."""


def frequencies(model: ModelConfig, device: torch.device | None = None) -> Tensor:
    """Angle per position of each pair, [E/2]: theta^(-2i / E) (RoFormer, eq. 15), stretched as the model says."""
    exponent = torch.arange(0, model.head_dim, 2, dtype=torch.float32, device=device) / model.head_dim
    plain = 1.0 / model.rope_theta**exponent
    scaling = model.rope_scaling
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    return _llama3(plain, scaling) if scaling.kind == "llama3" else _yarn(plain, model, scaling)


def magnitude(scaling: RopeScaling | None) -> float:
    """What cos and sin are multiplied by: yarn's attention temperature (Peng et al. 2023, section 3.4), else 1."""
    if scaling is None or scaling.kind != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0


def rotary_table(model: ModelConfig, length: int, device: torch.device | None = None) -> Rotary:
    """Cos and sin of positions 0 .. length - 1, each [T, E/2]."""
    return rotary_at(model, torch.arange(length, device=device))


def rotary_at(model: ModelConfig, positions: Tensor) -> Rotary:
    """Cos and sin of these positions: [..., T] gives [..., T, E/2]."""
    angle = positions.float()[..., None] * frequencies(model, positions.device)
    factor = magnitude(model.rope_scaling)
    return angle.cos() * factor, angle.sin() * factor


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Turn each pair (i, i + E/2) of the last dim by its position's angle; x is [..., T, E]."""
    cos, sin = (table.to(x.dtype) for table in rotary)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _llama3(plain: Tensor, scaling: RopeScaling) -> Tensor:
    """Long waves divided by the factor, short ones kept, a ramp between (Llama 3.1's reference code, apply_scaling)."""
    assert scaling.original_length is not None
    turns = scaling.original_length * plain / (2 * math.pi)
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    smooth = (1 - ramp) * plain / scaling.factor + ramp * plain
    return torch.where(
        turns < scaling.low_freq_factor, plain / scaling.factor, torch.where(turns > scaling.high_freq_factor, plain, smooth)
    )


def _yarn(plain: Tensor, model: ModelConfig, scaling: RopeScaling) -> Tensor:
    """NTK by parts (Peng et al. 2023, eqs. 17-19), the ramp laid over dims as in the authors' code (bounds rounded outwards)."""
    assert scaling.original_length is not None

    def dim_of(turns: float) -> float:
        waves = scaling.original_length / (turns * 2 * math.pi)  # type: ignore[operator]
        return model.head_dim * math.log(waves) / (2 * math.log(model.rope_theta))

    low = max(math.floor(dim_of(scaling.beta_fast)), 0)
    high = min(math.ceil(dim_of(scaling.beta_slow)), model.head_dim - 1)
    place = torch.arange(len(plain), dtype=torch.float32, device=plain.device)
    stretched = ((place - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain / scaling.factor * stretched + plain * (1 - stretched)
