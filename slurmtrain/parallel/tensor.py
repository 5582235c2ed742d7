"""Autograd functions over a tensor-parallel group: gather and scatter of the sequence, and the loss over a split vocabulary.

`gather_sequence` and `scatter_sequence` are each other's gradient. Both move dim 0 and take contiguous memory, so that a
sequence-first tensor is never copied for the collective.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

Group = dist.ProcessGroup | None

# torch 2.13 gave these new names; before it they are called *_tensor.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def _all_gather(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    out = x.new_empty(x.shape[0] * group.size(), *x.shape[1:])
    all_gather_single(out, x.contiguous(), group=group)
    return out


def _reduce_scatter(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    out = x.new_empty(x.shape[0] // group.size(), *x.shape[1:])
    reduce_scatter_single(out, x.contiguous(), group=group)
    return out


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _all_gather(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _reduce_scatter(grad, ctx.group), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _reduce_scatter(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _all_gather(grad, ctx.group), None


def gather_sequence(x: Tensor, group: Group) -> Tensor:
    """[T / tp, B, D] of each rank to [T, B, D] on all; the gradient is the reduce-scatter."""
    return x if group is None else _Gather.apply(x, group)


def scatter_sequence(x: Tensor, group: Group) -> Tensor:
    """Partial sums [T, B, D] of all ranks to their sum's [T / tp, B, D] on each; the gradient is the all-gather."""
    return x if group is None else _Scatter.apply(x, group)


def local_token(token: Tensor, start: int, real: int) -> tuple[Tensor, Tensor]:
    """Index into rows start..start+real of the vocabulary (0 where the token is another rank's), and whether it is ours."""
    index = token - start
    ours = (index >= 0) & (index < real)
    return torch.where(ours, index, 0), ours


class _VocabularyLoss(torch.autograd.Function):
    """Sum over tokens of log(sum_v exp(logit_v)) - logit_label, each rank with its own columns."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, label_N: Tensor, rows: tuple[int, int], group: dist.ProcessGroup) -> Tensor:
        start, real = rows
        scores = logits_NV[:, :real].float()
        top = scores.amax(-1) if real else scores.new_full((len(scores),), -torch.inf)
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=group)
        shifted = scores - top[:, None]
        index, ours = local_token(label_N, start, real)
        chosen = shifted.gather(1, index[:, None])[:, 0] * ours if real else torch.zeros_like(top)
        weights = shifted.exp_()
        sums = torch.stack([weights.sum(-1), chosen])
        dist.all_reduce(sums, group=group)
        ctx.save_for_backward(weights.div_(sums[0][:, None]), index, ours)
        ctx.width, ctx.dtype = logits_NV.shape[1], logits_NV.dtype
        return (sums[0].log() - sums[1]).sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        softmax, index, ours = ctx.saved_tensors
        out = softmax.new_zeros(len(softmax), ctx.width)
        real = softmax.shape[1]
        if real:
            out[:, :real] = softmax
            out.scatter_add_(1, index[:, None], -ours[:, None].to(out.dtype))
        return out.mul_(grad).to(ctx.dtype), None, None, None


def vocabulary_loss(logits_NV: Tensor, label_N: Tensor, *, start: int = 0, real: int | None = None, group: Group = None) -> Tensor:
    """Cross-entropy summed over N tokens in fp32, without gathering the logits.

    `logits_NV`: this rank's columns start..start+real of the vocabulary, then padding; `label_N`: global token numbers, the same
    on every rank of the group. The result is the same on every rank; its gradient is this rank's columns.
    """
    real = logits_NV.shape[1] if real is None else real
    if group is None:
        return functional.cross_entropy(logits_NV[:, :real].float(), label_N, reduction="sum")
    return _VocabularyLoss.apply(logits_NV, label_N, (start, real), group)
