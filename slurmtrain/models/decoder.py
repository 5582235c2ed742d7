"""A decoder of any family in `TRAITS` on one device, batch first: what every layout is measured against.

Parameter names are those of the global tensors (`names`). Weights mean the same as in transformers' models of the family: rotary
positions turn the first half of a head against the second, query head h reads kv head h // (H / K).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from slurmtrain.config.model import ModelConfig
from slurmtrain.models.attention import Attend, Whole
from slurmtrain.models.layers import RMSNorm, gelu, norm_of, swiglu
from slurmtrain.models.rotary import Rotary, rotary_at, rotary_table, rotate


class Attention(nn.Module):
    """Grouped-query attention: [B, T, D] to [B, T, D]."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        traits, E = model.traits, model.head_dim
        self.head_dim, self.dropout = E, model.attention_dropout
        self.q = nn.Linear(model.hidden, model.heads * E, bias=traits.qkv_bias)
        self.k = nn.Linear(model.hidden, model.kv_heads * E, bias=traits.qkv_bias)
        self.v = nn.Linear(model.hidden, model.kv_heads * E, bias=traits.qkv_bias)
        self.o = nn.Linear(model.heads * E, model.hidden, bias=traits.bias)
        self.q_norm = RMSNorm(E, model.norm_eps) if traits.qk_norm else None
        self.k_norm = RMSNorm(E, model.norm_eps) if traits.qk_norm else None

    def _heads(self, x_BTD: Tensor, linear: nn.Linear, norm: RMSNorm | None, rotary: Rotary | None) -> Tensor:
        """[B, heads, T, E], normalised, then turned."""
        x_BTHE = linear(x_BTD).unflatten(-1, (-1, self.head_dim))
        x_BHTE = (x_BTHE if norm is None else norm(x_BTHE)).transpose(1, 2)
        return x_BHTE if rotary is None else rotate(x_BHTE, rotary)

    def forward(self, x_BTD: Tensor, rotary: Rotary | None, attend: Attend, mask: Tensor | None) -> Tensor:
        q_BHTE = self._heads(x_BTD, self.q, self.q_norm, rotary)
        k_BKTE = self._heads(x_BTD, self.k, self.k_norm, rotary)
        v_BKTE = self._heads(x_BTD, self.v, None, None)
        out_BHTE = attend(q_BHTE, k_BKTE, v_BKTE, mask, self.dropout if self.training else 0.0)
        return self.o(out_BHTE.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """SwiGLU or GELU: [B, T, D] to [B, T, D]."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        bias, gated = model.traits.bias, model.traits.ffn == "swiglu"
        self.gate = nn.Linear(model.hidden, model.ffn, bias=bias) if gated else None
        self.up = nn.Linear(model.hidden, model.ffn, bias=bias)
        self.down = nn.Linear(model.ffn, model.hidden, bias=bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        up_BTF = self.up(x_BTD)
        return self.down(gelu(up_BTF) if self.gate is None else swiglu(self.gate(x_BTD), up_BTF))


class Block(nn.Module):
    """One layer: normalise, attend, add; normalise, feed forward, add."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = norm_of(model)
        self.attention = Attention(model)
        self.ffn_norm = norm_of(model)
        self.ffn = FeedForward(model)
        self.drop = nn.Dropout(model.dropout)

    def forward(self, x_BTD: Tensor, rotary: Rotary | None, attend: Attend, mask: Tensor | None) -> Tensor:
        x_BTD = x_BTD + self.drop(self.attention(self.attention_norm(x_BTD), rotary, attend, mask))
        return x_BTD + self.drop(self.ffn(self.ffn_norm(x_BTD)))


class Decoder(nn.Module):
    """Tokens [B, T] to logits [B, T, V]."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.model, self.attend = model, Whole(model.window)
        self.embedding = nn.Embedding(model.vocab, model.hidden)
        self.positions = None
        if model.traits.positions == "learned":
            assert model.max_positions is not None, "configuration checks refuse this"
            self.positions = nn.Embedding(model.max_positions, model.hidden)
        self.drop = nn.Dropout(model.dropout)
        self.layers = nn.ModuleList(Block(model) for _ in range(model.layers))
        self.norm = norm_of(model)
        self.head = None if model.tied_embeddings else nn.Linear(model.hidden, model.vocab, bias=False)

    def forward(self, tokens_BT: Tensor, positions_BT: Tensor | None = None, documents_BT: Tensor | None = None) -> Tensor:
        """`positions_BT`: where each token stands in its document; `documents_BT`: attention stays inside equal numbers."""
        x_BTD, rotary = self._placed(tokens_BT, positions_BT)
        mask = self.attend.mask(documents_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD, rotary, self.attend, mask)
        x_BTD = self.norm(x_BTD)
        return functional.linear(x_BTD, self.embedding.weight) if self.head is None else self.head(x_BTD)

    def _placed(self, tokens_BT: Tensor, positions_BT: Tensor | None) -> tuple[Tensor, Rotary | None]:
        """The embedded tokens, and the table that tells the layers their positions (none where they are learned)."""
        x_BTD, length, device = self.embedding(tokens_BT), tokens_BT.shape[1], tokens_BT.device
        if self.positions is not None:
            place = torch.arange(length, device=device) if positions_BT is None else positions_BT
            return self.drop(x_BTD + self.positions(place)), None
        if positions_BT is None:
            return self.drop(x_BTD), rotary_table(self.model, length, device)
        return self.drop(x_BTD), rotary_at(self.model, positions_BT[:, None])
