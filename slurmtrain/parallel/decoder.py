"""A pipeline stage of the decoder on local tensors: tensor and sequence parallel, sequence first.

The maths is `models.llama`'s; here are the cuts. x_SBD is this rank's T / tp positions, x_TBD all of them with this rank's heads
or columns. `Matmul` is the one place where column and row linear multiply: the seam for FP8 libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from slurmtrain.config.model import ModelConfig
from slurmtrain.models.llama import RMSNorm, Rotary, attend, rotary_table, swiglu
from slurmtrain.models.names import EMBEDDING, HEAD, layer_name
from slurmtrain.parallel.parts import Layout
from slurmtrain.parallel.tensor import Group, gather_sequence, local_token, scatter_sequence, vocabulary_loss

Matmul = Callable[[Tensor, Tensor], Tensor]
"""(x [..., in], weight [out, in]) -> [..., out]."""


class ColumnLinear(nn.Module):
    """Gathers the sequence and multiplies by rows of one or more weights: [S, B, D] to a [T, B, rows] for each part."""

    def __init__(self, layout: Layout, group: Group, matmul: Matmul) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(layout.shape))
        self.outputs = [part.box.shape[0] for part in layout.parts]
        self.group, self.matmul = group, matmul

    def forward(self, x_SBD: Tensor) -> tuple[Tensor, ...]:
        return self.matmul(gather_sequence(x_SBD, self.group), self.weight).split(self.outputs, dim=-1)


class RowLinear(nn.Module):
    """Multiplies by columns of a weight and sums over the group, scattering the sequence: [T, B, columns] to [S, B, D]."""

    def __init__(self, layout: Layout, group: Group, matmul: Matmul) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(layout.shape))
        self.group, self.matmul = group, matmul

    def forward(self, x_TBF: Tensor) -> Tensor:
        return scatter_sequence(self.matmul(x_TBF, self.weight), self.group)


class Vocabulary(nn.Module):
    """Rows of the embedding or of the head: `start` .. `start + real`, then padding that no token reaches."""

    def __init__(self, layout: Layout, group: Group) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(layout.shape))
        self.group = group
        self.start = layout.parts[0].box.offset[0] if layout.parts else 0
        self.real = layout.parts[0].box.shape[0] if layout.parts else 0

    def forward(self, token_BT: Tensor) -> Tensor:
        """Embeds: [B, T] to [S, B, D]."""
        token_TB = token_BT.t().contiguous()
        if self.group is None:
            return functional.embedding(token_TB, self.weight)
        index, ours = local_token(token_TB, self.start, self.real)
        return scatter_sequence(functional.embedding(index, self.weight) * ours[..., None], self.group)


class Attention(nn.Module):
    """The heads of this rank: [S, B, D] to [S, B, D]."""

    def __init__(self, model: ModelConfig, qkv: ColumnLinear, o: RowLinear) -> None:
        super().__init__()
        self.head_dim, self.qkv, self.o = model.head_dim, qkv, o

    def forward(self, x_SBD: Tensor, rotary: Rotary) -> Tensor:
        q, k, v = (x.unflatten(-1, (-1, self.head_dim)).permute(1, 2, 0, 3) for x in self.qkv(x_SBD))
        return self.o(attend(q, k, v, rotary).permute(2, 0, 1, 3).flatten(-2))


class FeedForward(nn.Module):
    """The columns of this rank: [S, B, D] to [S, B, D]."""

    def __init__(self, gate_up: ColumnLinear, down: RowLinear) -> None:
        super().__init__()
        self.gate_up, self.down = gate_up, down

    def forward(self, x_SBD: Tensor) -> Tensor:
        return self.down(swiglu(*self.gate_up(x_SBD)))


class Block(nn.Module):
    """One layer; norms and residuals on T / tp positions."""

    def __init__(self, model: ModelConfig, layer: int, layouts: Mapping[str, Layout], group: Group, matmul: Matmul) -> None:
        super().__init__()

        def layout(name: str) -> Layout:
            return layouts[layer_name(layer, name)]

        qkv = ColumnLinear(layout("attention.qkv.weight"), group, matmul)
        gate_up = ColumnLinear(layout("ffn.gate_up.weight"), group, matmul)
        self.attention_norm = RMSNorm(model.hidden, model.norm_eps)
        self.attention = Attention(model, qkv, RowLinear(layout("attention.o.weight"), group, matmul))
        self.ffn_norm = RMSNorm(model.hidden, model.norm_eps)
        self.ffn = FeedForward(gate_up, RowLinear(layout("ffn.down.weight"), group, matmul))

    def forward(self, x_SBD: Tensor, rotary: Rotary) -> Tensor:
        x_SBD = x_SBD + self.attention(self.attention_norm(x_SBD), rotary)
        return x_SBD + self.ffn(self.ffn_norm(x_SBD))


class Stage(nn.Module):
    """Some layers of the decoder; the first stage embeds tokens [B, T], the last one gives logits [T, B, V / tp].

    Parameters are named as in `parts.stage_layouts`, which also gives their shapes; they hold no values yet. `prepare` must
    follow once the parameters have a device.
    """

    def __init__(
        self,
        model: ModelConfig,
        layers: Sequence[int],
        layouts: Mapping[str, Layout],
        *,
        last: bool,
        group: Group = None,
        matmul: Matmul = functional.linear,
    ) -> None:
        super().__init__()
        self.model, self.group, self.matmul = model, group, matmul
        self.embedding = Vocabulary(layouts[EMBEDDING], group) if EMBEDDING in layouts else None
        self.layers = nn.ModuleDict({str(layer): Block(model, layer, layouts, group, matmul) for layer in layers})
        self.norm = RMSNorm(model.hidden, model.norm_eps) if last else None
        self.head = Vocabulary(layouts[HEAD], group) if HEAD in layouts else None
        self.rotary: Rotary | None = None

    def prepare(self, sequence_length: int, device: torch.device) -> None:
        """Make the table of rotary positions; it is computed, never stored."""
        self.rotary = rotary_table(sequence_length, self.model.head_dim, self.model.rope_theta, device)

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x, self.rotary)
        if self.norm is None:
            return x
        return self.matmul(gather_sequence(self.norm(x), self.group), self.output.weight)

    @property
    def output(self) -> Vocabulary:
        """The head, or the embedding that is tied to it."""
        vocabulary = self.embedding if self.head is None else self.head
        assert vocabulary is not None, "the last stage of a tied model must be its first"
        return vocabulary

    def loss_sum(self, logits_TBV: Tensor, label_BT: Tensor) -> Tensor:
        """Cross-entropy summed over the micro-batch's tokens; the same on all tensor-parallel ranks."""
        out = self.output
        label_N = label_BT.t().reshape(-1)
        return vocabulary_loss(logits_TBV.flatten(0, 1), label_N, start=out.start, real=out.real, group=self.group)
