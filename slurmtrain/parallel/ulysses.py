"""Ulysses (Jacobs et al. 2023): positions of all heads are exchanged for all positions of some heads, and back."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from slurmtrain.models.attention import Attend, Whole
from slurmtrain.parallel.axis import Axis


@dataclass(frozen=True)
class Ulysses:
    """Attention over a context-parallel group, each rank with T / cp neighbouring positions. `inner`: what attends to the whole
    sequence, with heads / cp of the heads.
    """

    cp: Axis
    inner: Attend = field(default_factory=Whole)

    def mask(self, documents_BT: Tensor | None) -> Tensor | None:
        return self.inner.mask(None if documents_BT is None else gather_positions(documents_BT, self.cp))

    def __call__(self, q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
        heads, kv_heads, size = q_BHTE.shape[1], k_BKTE.shape[1], self.cp.size
        assert heads % size == 0, f"{heads} heads do not divide by cp = {size}; configuration checks refuse it"
        each = math.lcm(kv_heads, size) // kv_heads  # 1, unless ranks share a head of keys
        if each > 1:
            k_BKTE, v_BKTE = k_BKTE.repeat_interleave(each, 1), v_BKTE.repeat_interleave(each, 1)
        pieces = [x.unflatten(1, (size, -1)) for x in (q_BHTE, k_BKTE, v_BKTE)]
        widths = [x.shape[2] for x in pieces]
        sent = torch.cat(pieces, 2).movedim(1, 0)
        got = _Exchange.apply(sent, self.cp).permute(1, 2, 0, 3, 4).flatten(2, 3)
        q, k, v = got.split(widths, 1)
        out = self.inner(q, k, v, mask, dropout)
        back = _Exchange.apply(out.unflatten(2, (size, -1)).movedim(2, 0), self.cp)
        return back.movedim(0, 1).flatten(1, 2)


class _Exchange(torch.autograd.Function):
    """Piece j of dim 0 to rank j, which gives the pieces of all ranks in their order; its own gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cp: Axis) -> Tensor:
        ctx.cp = cp
        return cp.all_to_all(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.cp.all_to_all(grad), None


def gather_positions(x_BT: Tensor, cp: Axis) -> Tensor:
    """[B, T / cp] of each rank to [B, T] on all, in the order of the ranks; no gradient."""
    return cp.all_gather(x_BT.t()).t()
