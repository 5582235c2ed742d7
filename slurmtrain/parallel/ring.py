"""Ring attention (Liu et al. 2023): keys and values travel around the group while queries attend to those that are here.

The sequence is cut into 2 cp pieces, and rank r has pieces r and 2 cp - 1 - r, head and tail, so that all have as much to do: of
its own keys each query sees those before it; of a rank before, all queries see the head alone; of a rank after, the tail's
queries see all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from slurmtrain.parallel.axis import Axis, Pending
from slurmtrain.parallel.blockwise import Blockwise, blockwise_for, merge
from slurmtrain.parallel.keep import kept

_ALL = slice(None)


@dataclass(frozen=True)
class Ring:
    """Attention over a context-parallel group, of a causal mask alone."""

    cp: Axis

    def mask(self, documents_BT: Tensor | None) -> None:
        assert documents_BT is None, "ring attention has no mask of documents; configuration checks refuse it"

    def __call__(self, q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
        assert mask is None, "ring attention takes no mask"
        assert dropout == 0, "ring attention has no dropout; configuration checks refuse it"
        return ring_attention(q_BHTE, k_BKTE, v_BKTE, self.cp, blockwise_for(q_BHTE, k_BKTE))


def ring_attention(q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor, cp: Axis, blockwise: Blockwise) -> Tensor:
    """[B, H, T / cp, E] of queries, with head and tail of the sequence one after the other; grouped keys travel grouped."""
    assert q_BHTE.shape[2] % 2 == 0, f"T / cp = {q_BHTE.shape[2]} is odd; configuration checks refuse it"
    return _Ring.apply(q_BHTE, torch.stack([k_BKTE, v_BKTE]), cp, blockwise)


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, own: Tensor, cp: Axis, blockwise: Blockwise) -> Tensor:
        result, lse = kept("ring", lambda: _around(q, own, cp, blockwise))
        ctx.save_for_backward(q, own, result, lse)
        ctx.cp, ctx.blockwise = cp, blockwise
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Gradients of keys and values follow these around the ring, a step behind, and end where the keys came from."""
        q, kv, out, lse = ctx.saved_tensors
        cp, blockwise, length = ctx.cp, ctx.blockwise, q.shape[2]
        grad = grad.contiguous()
        grad_q, grad_kv = torch.zeros_like(q, dtype=torch.float32), torch.zeros_like(kv, dtype=torch.float32)
        following: Pending | None = None
        for step in range(cp.size):
            coming = cp.start_shift(kv) if step + 1 < cp.size else None
            rows, seen = _seen(cp, step, length)
            inputs = q[:, :, rows], kv[0][:, :, seen], kv[1][:, :, seen]
            total = out[:, :, rows], lse[:, :, rows].contiguous()
            parts = blockwise.backward(grad[:, :, rows], inputs, total, causal=step == 0)
            grad_q[:, :, rows] += parts[0]
            grad_kv = grad_kv if following is None else following.wait()
            grad_kv[0][:, :, seen] += parts[1]
            grad_kv[1][:, :, seen] += parts[2]
            following = cp.start_shift(grad_kv)
            kv = kv if coming is None else coming.wait()
        assert following is not None
        return grad_q.to(q.dtype), following.wait().to(kv.dtype), None, None


def _around(q: Tensor, kv: Tensor, cp: Axis, blockwise: Blockwise) -> tuple[Tensor, Tensor]:
    """Out in the dtype of q, and lse in fp32."""
    out, lse = q.new_empty(q.shape, dtype=torch.float32), q.new_empty(q.shape[:3], dtype=torch.float32)
    for step in range(cp.size):
        coming = cp.start_shift(kv) if step + 1 < cp.size else None
        rows, seen = _seen(cp, step, q.shape[2])
        part, part_lse = blockwise.forward(q[:, :, rows], kv[0][:, :, seen], kv[1][:, :, seen], causal=step == 0)
        if step == 0:
            out.copy_(part)
            lse.copy_(part_lse)
        else:
            merge(out[:, :, rows], lse[:, :, rows], part, part_lse)
        kv = kv if coming is None else coming.wait()
    return out.to(q.dtype), lse


def _seen(cp: Axis, step: int, length: int) -> tuple[slice, slice]:
    """Which of our queries see which of the keys that are here after so many steps: those of rank index - step."""
    half = length // 2
    if step == 0:
        return _ALL, _ALL
    return (_ALL, slice(0, half)) if step <= cp.index else (slice(half, length), _ALL)
