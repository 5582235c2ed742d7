"""Context parallelism: the ranks of an axis share each sequence, and attention alone sees past a rank's own positions.

| mode | a rank's positions | what moves | takes |
|---|---|---|---|
| ring | pieces r and 2 cp - 1 - r of 2 cp | keys and values, step by step, under the computation | causal alone |
| allgather | the same | keys and values, at once | windows, documents |
| ulysses | piece r of cp | heads against positions | windows, documents, dropout; cp must divide the heads |

Tokens, labels, positions and documents are cut alike by `cut`; labels are made before, so that the last token of each piece has
the token after it as its target.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from slurmtrain.config.parallel import CpMode
from slurmtrain.models.attention import Attend, Whole, allowed
from slurmtrain.parallel.axis import Axis
from slurmtrain.parallel.ring import Ring
from slurmtrain.parallel.ulysses import Ulysses, gather_positions


def positions(length: int, size: int, index: int, mode: CpMode, device: torch.device | None = None) -> Tensor:
    """The global positions that rank `index` of `size` has, ascending: [T / cp], int64.

    >>> positions(8, 2, 0, "ring").tolist(), positions(8, 2, 1, "ring").tolist()
    ([0, 1, 6, 7], [2, 3, 4, 5])
    >>> positions(8, 2, 1, "ulysses").tolist()
    [4, 5, 6, 7]
    """
    places = torch.arange(length, device=device)
    if size == 1:
        return places
    count = size if mode == "ulysses" else 2 * size
    assert length % count == 0, f"a sequence of {length} does not divide by {count}; configuration checks refuse it"
    pieces = places.chunk(count)
    return pieces[index] if mode == "ulysses" else torch.cat([pieces[index], pieces[count - 1 - index]])


def cut(x: Tensor, size: int, index: int, mode: CpMode, dim: int = 1) -> Tensor:
    """What rank `index` of `size` has of a tensor over the whole sequence, which lies along `dim`."""
    return x if size == 1 else x.index_select(dim, positions(x.shape[dim], size, index, mode, x.device))


def attention_over(cp: Axis | None, mode: CpMode, *, length: int, window: int | None = None) -> Attend:
    """Attention of a rank of the axis. `length`: of the whole sequence."""
    if cp is None:
        return Whole(window)
    if mode == "ulysses":
        return Ulysses(cp, Whole(window))
    if mode == "allgather":
        return AllGather(cp, length, window)
    assert window is None, "ring attention has no window; configuration checks refuse it"
    return Ring(cp)


class AllGather:
    """Keys and values of all ranks are gathered, grouped as they are, and an explicit mask says what each query sees."""

    def __init__(self, cp: Axis, length: int, window: int | None = None) -> None:
        self.cp, self._length, self._window = cp, length, window
        self._plain: Tensor | None = None

    def mask(self, documents_BT: Tensor | None) -> Tensor | None:
        """[B, 1, T / cp, T] bool of separate documents; None: that of every pass, [T / cp, T]."""
        if documents_BT is None:
            return None
        same = documents_BT[:, None, :, None] == gather_positions(documents_BT, self.cp)[:, None, None, :]
        return same & self._causal(documents_BT.device)

    def __call__(self, q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
        assert dropout == 0, "attention dropout needs ulysses; configuration checks refuse it"
        mask = self._causal(q_BHTE.device) if mask is None else mask
        gathered = _Gather.apply(torch.stack([k_BKTE, v_BKTE]), self.cp)
        k, v = gathered.unflatten(0, (self.cp.size, 2)).permute(1, 2, 3, 0, 4, 5).flatten(3, 4)
        return functional.scaled_dot_product_attention(q_BHTE, k, v, attn_mask=mask, enable_gqa=q_BHTE.shape[1] != k.shape[1])

    def _causal(self, device: torch.device) -> Tensor:
        """Made once; in compiled code where it is used, since a compiler lets nothing be set outside."""
        if torch.compiler.is_compiling():
            return self._made(device)
        if self._plain is None or self._plain.device != device:
            self._plain = self._made(device)
        return self._plain

    def _made(self, device: torch.device) -> Tensor:
        size = self.cp.size
        places = [positions(self._length, size, index, "allgather", device) for index in range(size)]
        return allowed(places[self.cp.index], torch.cat(places), self._window)


class _Gather(torch.autograd.Function):
    """All-gather of dim 0; the gradient is the reduce-scatter, added up in fp32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cp: Axis) -> Tensor:
        ctx.cp = cp
        return cp.all_gather(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.cp.reduce_scatter(grad.float()).to(grad.dtype), None
