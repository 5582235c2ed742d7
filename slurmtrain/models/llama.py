"""A llama-shaped decoder on one device: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

The functions are what every layout computes; the modules put them together for one device, batch first. Parameter names are
the names of the global tensors (`names`). Weights mean the same as in transformers' LlamaForCausalLM: rotary positions turn
the first half of a head against the second.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from slurmtrain.config.model import ModelConfig

Rotary = tuple[Tensor, Tensor]
"""cos and sin, each [T, E/2], fp32."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Computes x / sqrt(mean(x^2) + eps) * weight over the last dim (Zhang and Sennrich 2019, eq. 4)."""
    return functional.rms_norm(x, (x.shape[-1],), weight, eps)


def rotary_table(length: int, head_dim: int, theta: float, device: torch.device | None = None) -> Rotary:
    """Angles t * theta^(-2i / E) of RoFormer (Su et al. 2021, eq. 15), computed in fp32."""
    frequency = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)
    angle_TE = torch.outer(torch.arange(length, dtype=torch.float32, device=device), frequency)
    return angle_TE.cos(), angle_TE.sin()


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Turn each pair (i, i + E/2) of the last dim by its position's angle; x is [..., T, E]."""
    cos, sin = (table.to(x.dtype) for table in rotary)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def attend(q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor, rotary: Rotary) -> Tensor:
    """Causal attention over rotated queries and keys; query head h reads kv head h // (H / K). Returns [B, H, T, E]."""
    grouped = q_BHTE.shape[1] != k_BKTE.shape[1]
    return functional.scaled_dot_product_attention(
        rotate(q_BHTE, rotary), rotate(k_BKTE, rotary), v_BKTE, is_causal=True, enable_gqa=grouped
    )


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up (Shazeer 2020, eq. 6)."""
    return functional.silu(gate) * up


class RMSNorm(nn.Module):
    """`rms_norm` with its weight [D]."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class Attention(nn.Module):
    """Grouped-query attention: [B, T, D] to [B, T, D]."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.head_dim = model.head_dim
        q_rows, kv_rows = model.heads * model.head_dim, model.kv_heads * model.head_dim
        self.q = nn.Linear(model.hidden, q_rows, bias=False)
        self.k = nn.Linear(model.hidden, kv_rows, bias=False)
        self.v = nn.Linear(model.hidden, kv_rows, bias=False)
        self.o = nn.Linear(q_rows, model.hidden, bias=False)

    def forward(self, x_BTD: Tensor, rotary: Rotary) -> Tensor:
        q, k, v = (project(x_BTD).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for project in (self.q, self.k, self.v))
        return self.o(attend(q, k, v, rotary).transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    """SwiGLU: [B, T, D] to [B, T, D]."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(model.hidden, model.ffn, bias=False)
        self.up = nn.Linear(model.hidden, model.ffn, bias=False)
        self.down = nn.Linear(model.ffn, model.hidden, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(swiglu(self.gate(x_BTD), self.up(x_BTD)))


class Block(nn.Module):
    """One layer: normalise, attend, add; normalise, feed forward, add."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(model.hidden, model.norm_eps)
        self.attention = Attention(model)
        self.ffn_norm = RMSNorm(model.hidden, model.norm_eps)
        self.ffn = FeedForward(model)

    def forward(self, x_BTD: Tensor, rotary: Rotary) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), rotary)
        return x_BTD + self.ffn(self.ffn_norm(x_BTD))


class Llama(nn.Module):
    """Tokens [B, T] to logits [B, T, V]."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.model = model
        self.embedding = nn.Embedding(model.vocab, model.hidden)
        self.layers = nn.ModuleList(Block(model) for _ in range(model.layers))
        self.norm = RMSNorm(model.hidden, model.norm_eps)
        self.head = None if model.tied_embeddings else nn.Linear(model.hidden, model.vocab, bias=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        rotary = rotary_table(tokens_BT.shape[1], self.model.head_dim, self.model.rope_theta, tokens_BT.device)
        x_BTD = self.embedding(tokens_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD, rotary)
        x_BTD = self.norm(x_BTD)
        return functional.linear(x_BTD, self.embedding.weight) if self.head is None else self.head(x_BTD)
