"""A decoder of every family in plain torch, one process, nothing shared with the package but names and shapes: what layouts must equal."""

from __future__ import annotations

import math

import torch
from torch import nn

from slurmtrain.config.model import ModelConfig
from slurmtrain.models.names import global_shapes


class Plain(nn.Module):
    """Tokens [B, T] to logits [B, T, V]. Parameters have the global names."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        assert model.rope_scaling is None, "stretched positions have tests of their own"
        self.model = model
        for name, shape in global_shapes(model).items():
            *path, last = name.split(".")
            place = self
            for step in path:
                if step not in dict(place.named_children()):
                    place.add_module(step, nn.Module())
                place = place.get_submodule(step)
            place.register_parameter(last, nn.Parameter(torch.empty(shape)))

    def _norm(self, x, at):
        if self.model.traits.norm == "layer":
            x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + self.model.norm_eps).sqrt()
            return x * at.weight + at.bias
        return x / (x.square().mean(-1, keepdim=True) + self.model.norm_eps).sqrt() * at.weight

    def _linear(self, x, at):
        y = x @ at.weight.t()
        return y + at.bias if hasattr(at, "bias") else y

    def _rotate(self, x_BTHE, positions_BT):
        E = x_BTHE.shape[-1]
        angle = positions_BT[:, :, None, None].double() * self.model.rope_theta ** (-2 * torch.arange(E // 2).double() / E)
        turn = torch.polar(torch.ones_like(angle), angle).to(x_BTHE.dtype.to_complex())
        turned = torch.complex(*x_BTHE.chunk(2, -1)) * turn
        return torch.cat([turned.real, turned.imag], -1)

    def _attention(self, x, at, positions_BT, seen_BTT):
        model = self.model
        q, k, v = (self._linear(x, p).unflatten(-1, (-1, model.head_dim)) for p in (at.q, at.k, at.v))
        if model.traits.qk_norm:
            q, k = self._norm(q, at.q_norm), self._norm(k, at.k_norm)
        if model.traits.positions == "rotary":
            q, k = self._rotate(q, positions_BT), self._rotate(k, positions_BT)
        k, v = (t.repeat_interleave(model.heads // model.kv_heads, 2) for t in (k, v))
        scores = torch.einsum("bqhe,bkhe->bhqk", q, k) / math.sqrt(model.head_dim)
        weights = scores.masked_fill(~seen_BTT[:, None], -torch.inf).softmax(-1)
        return self._linear(torch.einsum("bhqk,bkhe->bqhe", weights, v).flatten(2), at.o)

    def _ffn(self, x, at):
        up = self._linear(x, at.up)
        if self.model.traits.ffn == "swiglu":
            gate = self._linear(x, at.gate)
            return self._linear(gate * gate.sigmoid() * up, at.down)
        inner = math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)
        return self._linear(0.5 * up * (1 + inner.tanh()), at.down)

    def forward(self, tokens_BT, positions_BT=None, documents_BT=None):
        model, T = self.model, tokens_BT.shape[1]
        place = torch.arange(T)
        positions_BT = place.expand_as(tokens_BT) if positions_BT is None else positions_BT
        distance = place[:, None] - place[None, :]
        seen = ((distance >= 0) & (distance < (model.window or T))).expand(len(tokens_BT), T, T)
        if documents_BT is not None:
            seen = seen & (documents_BT[:, :, None] == documents_BT[:, None, :])
        x = self.embedding.weight[tokens_BT]
        if model.traits.positions == "learned":
            x = x + self.positions.weight[positions_BT]
        for layer in self.layers.children():
            x = x + self._attention(self._norm(x, layer.attention_norm), layer.attention, positions_BT, seen)
            x = x + self._ffn(self._norm(x, layer.ffn_norm), layer.ffn)
        return self._norm(x, self.norm) @ (self.embedding if model.tied_embeddings else self.head).weight.t()
