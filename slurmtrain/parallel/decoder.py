"""A pipeline stage of the decoder on local tensors: tensor and sequence parallel, sequence first.

The maths is that of `models`; here are the cuts. x_SBD is this rank's T / tp positions of the T that context parallelism leaves it,
x_TBD all T with this rank's heads or columns. Between stages travels [S, B, D].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from slurmtrain.config.model import ModelConfig
from slurmtrain.models.attention import Attend, Whole
from slurmtrain.models.layers import RMSNorm, gelu, norm_of, swiglu
from slurmtrain.models.names import EMBEDDING, HEAD, POSITIONS, layer_name
from slurmtrain.models.rotary import Rotary, rotary_at, rotate
from slurmtrain.parallel.axis import Axis
from slurmtrain.parallel.loss import Head, linear_cross_entropy, local_token
from slurmtrain.parallel.parts import Layout
from slurmtrain.parallel.tensor import Linear, Matmul, Multiply, gather_sequence, scatter_sequence


class Vocabulary(nn.Module):
    """Rows `start` .. `start + real` of the embedding or of the head, then padding that no token reaches and no loss sees."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(layout.shape))
        self.start = layout.parts[0].box.offset[0] if layout.parts else 0
        self.real = layout.parts[0].box.shape[0] if layout.parts else 0

    def embed(self, token_BT: Tensor, tp: Axis | None) -> Tensor:
        """[B, T] to [S, B, D]."""
        token_TB = token_BT.t().contiguous()
        if tp is None:
            return functional.embedding(token_TB, self.weight)
        index, ours = local_token(token_TB, self.start, self.real)
        return scatter_sequence(functional.embedding(index, self.weight) * ours[..., None], tp)


class Positions(nn.Module):
    """The table of learned positions, whole on every rank."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(layout.shape))


class Attention(nn.Module):
    """The heads of this rank: [S, B, D] to [S, B, D]."""

    o: Linear

    def __init__(self, model: ModelConfig, linears: Mapping[str, Linear], multiply: Multiply, attend: Attend) -> None:
        super().__init__()
        self.head_dim, self.dropout, self.multiply, self.attend = model.head_dim, model.attention_dropout, multiply, attend
        self.inputs = [name for name in ("qkv", "q", "kv") if name in linears]
        for name, linear in linears.items():
            self.add_module(name, linear)
        self.q_norm = RMSNorm(model.head_dim, model.norm_eps) if model.traits.qk_norm else None
        self.k_norm = RMSNorm(model.head_dim, model.norm_eps) if model.traits.qk_norm else None

    def forward(self, x_SBD: Tensor, rotary: Rotary | None, mask: Tensor | None) -> Tensor:
        projected = self.multiply.columns(x_SBD, [getattr(self, name) for name in self.inputs])
        q_TBHE, k_TBKE, v_TBKE = (x.unflatten(-1, (-1, self.head_dim)) for x in projected)
        q_BHTE, k_BKTE = _turned(q_TBHE, self.q_norm, rotary), _turned(k_TBKE, self.k_norm, rotary)
        dropout = self.dropout if self.training else 0.0
        out_BHTE = self.attend(q_BHTE, k_BKTE, v_TBKE.permute(1, 2, 0, 3), mask, dropout)
        return self.multiply.rows(out_BHTE.permute(2, 0, 1, 3).flatten(2), self.o)


def _turned(x_TBHE: Tensor, norm: RMSNorm | None, rotary: Rotary | None) -> Tensor:
    """[B, H, T, E], normalised, then turned to its positions."""
    x_BHTE = (x_TBHE if norm is None else norm(x_TBHE)).permute(1, 2, 0, 3)
    return x_BHTE if rotary is None else rotate(x_BHTE, rotary)


class FeedForward(nn.Module):
    """The columns of this rank: [S, B, D] to [S, B, D]."""

    gate_up: Linear
    up: Linear
    down: Linear

    def __init__(self, linears: Mapping[str, Linear], multiply: Multiply) -> None:
        super().__init__()
        self.multiply, self.gated = multiply, "gate_up" in linears
        for name, linear in linears.items():
            self.add_module(name, linear)

    def forward(self, x_SBD: Tensor) -> Tensor:
        columns = self.multiply.columns(x_SBD, [self.gate_up if self.gated else self.up])
        return self.multiply.rows(swiglu(*columns) if self.gated else gelu(*columns), self.down)


class Block(nn.Module):
    """One layer; norms, dropout and residuals on T / tp positions. `mask`: what `attend.mask` gave for the micro-batch."""

    def __init__(self, model: ModelConfig, layer: int, layouts: Mapping[str, Layout], multiply: Multiply, attend: Attend) -> None:
        super().__init__()
        self.dropout = model.dropout
        self.attention_norm = norm_of(model)
        self.attention = Attention(model, _linears(layouts, layer, "attention", ("qkv", "q", "kv", "o")), multiply, attend)
        self.ffn_norm = norm_of(model)
        self.ffn = FeedForward(_linears(layouts, layer, "ffn", ("gate_up", "up", "down")), multiply)

    def forward(self, x_SBD: Tensor, rotary: Rotary | None, mask: Tensor | None) -> Tensor:
        x_SBD = x_SBD + self._dropped(self.attention(self.attention_norm(x_SBD), rotary, mask))
        return x_SBD + self._dropped(self.ffn(self.ffn_norm(x_SBD)))

    def _dropped(self, x_SBD: Tensor) -> Tensor:
        return functional.dropout(x_SBD, self.dropout) if self.training and self.dropout else x_SBD


def _linears(layouts: Mapping[str, Layout], layer: int, group: str, names: Sequence[str]) -> dict[str, Linear]:
    """The linears of a layer's group that its layouts have."""
    full = {name: layer_name(layer, f"{group}.{name}") for name in names}
    return {name: Linear(layouts[f"{at}.weight"], layouts.get(f"{at}.bias")) for name, at in full.items() if f"{at}.weight" in layouts}


class Stage(nn.Module):
    """Some layers of the decoder; the first stage embeds, the last one gives the loss, or logits where there are no labels.

    Parameters are named as in `parts.stage_layouts`, which also gives their shapes; they hold no values yet. `prepare` must
    follow once they have a device. `overlap`: see `Multiply`.
    """

    def __init__(
        self,
        model: ModelConfig,
        layers: Sequence[int],
        layouts: Mapping[str, Layout],
        *,
        first: bool,
        last: bool,
        tp: Axis | None = None,
        matmul: Matmul = functional.linear,
        attend: Attend | None = None,
        loss_chunk_tokens: int = 1024,
        z_loss: float = 0.0,
        overlap: bool = True,
    ) -> None:
        super().__init__()
        self.model, self.tp, self.attend = model, tp, attend or Whole(model.window)
        self.loss_chunk_tokens, self.z_loss = loss_chunk_tokens, z_loss
        multiply = Multiply(tp, matmul, overlap)
        self.embedding = Vocabulary(layouts[EMBEDDING]) if first else None
        self.positions = Positions(layouts[POSITIONS]) if POSITIONS in layouts else None
        self.layers = nn.ModuleDict({str(layer): Block(model, layer, layouts, multiply, self.attend) for layer in layers})
        self.norm = norm_of(model) if last else None
        self.head = Vocabulary(layouts[HEAD]) if HEAD in layouts else None
        self.place_T = torch.empty(0, dtype=torch.int64)
        self.rotary: Rotary | None = None

    def prepare(self, positions_T: Tensor) -> None:
        """Take this rank's positions (T: what context parallelism leaves it), on the device; they are never stored."""
        self.place_T = positions_T
        self.rotary = rotary_at(self.model, positions_T) if self.model.traits.positions == "rotary" else None

    def forward(
        self, x: Tensor, labels_BT: Tensor | None = None, positions_BT: Tensor | None = None, documents_BT: Tensor | None = None
    ) -> Tensor:
        """Tokens [B, T] (first stage) or [S, B, D] to [S, B, D]; of the last stage the loss summed over valid tokens (scalar, fp32, the
        same on every tensor-parallel rank), or without labels this rank's columns of the logits, [T, B, V_local].

        `positions_BT`, `documents_BT`: where documents are separate; labels: IGNORED has no loss.
        """
        x_SBD = x if self.embedding is None else self._embed(x, positions_BT)
        rotary, mask = self._turns(positions_BT), self.attend.mask(documents_BT)
        for layer in self.layers.values():
            x_SBD = layer(x_SBD, rotary, mask)
        if self.norm is None:
            return x_SBD
        x_TBD = gather_sequence(self.norm(x_SBD), self.tp)
        if labels_BT is None:
            return functional.linear(x_TBD, self._output.weight)
        head = Head(self._output.start, self._output.real, self.tp, self.loss_chunk_tokens, self.z_loss)
        return linear_cross_entropy(x_TBD.flatten(0, 1), self._output.weight, labels_BT.t().flatten(), head)

    def _embed(self, token_BT: Tensor, positions_BT: Tensor | None) -> Tensor:
        assert self.embedding is not None
        x_SBD = self.embedding.embed(token_BT, self.tp)
        if self.positions is not None:
            place_TB = self.place_T[:, None] if positions_BT is None else positions_BT.t()
            place_SB = place_TB if self.tp is None else place_TB.chunk(self.tp.size)[self.tp.index]
            x_SBD = x_SBD + functional.embedding(place_SB, self.positions.weight)
        return functional.dropout(x_SBD, self.model.dropout, self.training)

    def _turns(self, positions_BT: Tensor | None) -> Rotary | None:
        """Cos and sin, one table for all sequences, or [B, 1, T, E/2] where their positions differ."""
        return self.rotary if positions_BT is None or self.rotary is None else rotary_at(self.model, positions_BT[:, None])

    @property
    def _output(self) -> Vocabulary:
        """The head, or the embedding that is also the head."""
        vocabulary = self.embedding if self.head is None else self.head
        assert vocabulary is not None, "layouts of a last stage have a head, or it is the first too"
        return vocabulary
