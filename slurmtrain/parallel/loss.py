"""The head and the loss in one function that never holds all logits: chunk by chunk, parallel over the vocabulary.

loss = sum over valid tokens of lse - logit_label + z lse^2, lse = log sum_v exp(logit_v) in fp32 (z-loss: Chowdhery et al. 2022, PaLM,
section 5). Its gradient by the logits, softmax (1 + 2 z lse) - onehot, is made in the forward pass, while a chunk's logits exist, and
turned into those of input and weight at once; backward only multiplies these by the incoming scalar, so that it may run any number
of times. Each tensor-parallel rank has some columns of the logits; one small all-gather a chunk tells it the lse of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from slurmtrain.parallel.axis import Axis
from slurmtrain.parallel.batch import IGNORED


def local_token(token: Tensor, start: int, real: int) -> tuple[Tensor, Tensor]:
    """Index into rows start..start+real of the vocabulary (0 where the token is another rank's), and whether it is ours."""
    index = token - start
    ours = (index >= 0) & (index < real)
    return torch.where(ours, index, 0), ours


@dataclass(frozen=True)
class Head:
    """What the loss needs to know besides tensors.

    `start`, `real`: which rows of the vocabulary the weight holds (after them padding); `chunk`: tokens whose logits exist at a time.
    """

    start: int
    real: int
    tp: Axis | None = None
    chunk: int = 1024
    z_loss: float = 0.0


def linear_cross_entropy(x_ND: Tensor, weight_VD: Tensor, label_N: Tensor, head: Head) -> Tensor:
    """Loss summed over the tokens whose label is not IGNORED: scalar fp32, the same on every rank of the axis.

    `x_ND` and `label_N` (global token numbers) are the same on every rank. The gradients are those of this rank's columns: that of
    x is to be summed over the axis, as `gather_sequence` does.
    """
    if torch.is_grad_enabled() and (x_ND.requires_grad or weight_VD.requires_grad):
        return _LinearCrossEntropy.apply(x_ND, weight_VD, label_N, head)
    total = x_ND.new_zeros((), dtype=torch.float32)
    for x, label in zip(x_ND.split(head.chunk), label_N.split(head.chunk), strict=True):
        total += _score(x, weight_VD, label, head).loss
    return total


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, weight_VD: Tensor, label_N: Tensor, head: Head) -> Tensor:
        total = x_ND.new_zeros((), dtype=torch.float32)
        dx_ND, dw_VD = torch.empty_like(x_ND), torch.zeros_like(weight_VD, dtype=torch.float32)
        for x, label, dx in zip(*(t.split(head.chunk) for t in (x_ND, label_N, dx_ND)), strict=True):
            scored = _score(x, weight_VD, label, head)
            total += scored.loss
            dlogits = _by_logits(scored, head)
            torch.mm(dlogits, weight_VD[: head.real], out=dx)
            _add_product(dw_VD[: head.real], dlogits, x)
        ctx.save_for_backward(dx_ND, dw_VD)
        ctx.weight_dtype = weight_VD.dtype
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        dx_ND, dw_VD = ctx.saved_tensors
        return dx_ND * grad, (dw_VD * grad).to(ctx.weight_dtype), None, None


class _Scored(NamedTuple):
    """A chunk's loss, and what its gradient is made of.

    `product_NV`: logits of this rank's columns as the product gave them, memory for what comes next; `weight_NV`: exp(logit - top),
    fp32; `lse_N`: over all ranks' columns; `chosen_N`: the label's logit where it is ours; `index_N`: its column here.
    """

    loss: Tensor
    product_NV: Tensor
    weight_NV: Tensor
    top_N: Tensor
    lse_N: Tensor
    chosen_N: Tensor
    index_N: Tensor
    ours_N: Tensor
    valid_N: Tensor


def _score(x_ND: Tensor, weight_VD: Tensor, label_N: Tensor, head: Head) -> _Scored:
    product_NV = x_ND @ weight_VD[: head.real].t()
    scores_NV = product_NV.float()
    index, ours = local_token(label_N, head.start, head.real)
    chosen = torch.where(ours, _at(scores_NV, index), 0.0)
    top = scores_NV.amax(-1) if head.real else chosen - torch.inf
    weight_NV = scores_NV.sub_(top[:, None]).exp_()
    lse = total_lse = top + weight_NV.sum(-1).log()
    total_chosen = chosen
    if head.tp is not None:
        lses_RN, chosens_RN = head.tp.all_gather(torch.stack([lse, chosen])[None]).unbind(1)
        total_lse, total_chosen = lses_RN.logsumexp(0), chosens_RN.sum(0)
    loss_N = total_lse - total_chosen
    if head.z_loss:
        loss_N = loss_N + head.z_loss * total_lse.square()
    valid = label_N != IGNORED
    return _Scored(torch.where(valid, loss_N, 0.0).sum(), product_NV, weight_NV, top, total_lse, chosen, index, ours, valid)


def _by_logits(scored: _Scored, head: Head) -> Tensor:
    """The gradient by the logits, in the memory of the product: few passes over what is the largest tensor of a step."""
    slope_N = scored.valid_N * (1 + 2 * head.z_loss * scored.lse_N)
    grad_NV = torch.mul(scored.weight_NV, (slope_N * (scored.top_N - scored.lse_N).exp())[:, None], out=scored.product_NV)
    if head.real:
        at_label = slope_N * (scored.chosen_N - scored.lse_N).exp() - 1
        kept = torch.where(scored.ours_N, at_label.to(grad_NV.dtype), _at(grad_NV, scored.index_N))
        grad_NV.scatter_(1, scored.index_N[:, None], kept[:, None])
    return grad_NV


def _at(scores_NV: Tensor, index_N: Tensor) -> Tensor:
    """One score of each row; 0 where the rank has no column at all."""
    return scores_NV.gather(1, index_N[:, None])[:, 0] if scores_NV.shape[1] else scores_NV.new_zeros(len(scores_NV))


def _add_product(total_VD: Tensor, dlogits_NV: Tensor, x_ND: Tensor) -> None:
    """Add dlogits^T x, in fp32 between chunks."""
    if x_ND.dtype == torch.float32:
        total_VD.addmm_(dlogits_NV.t(), x_ND)
    else:
        total_VD.add_(dlogits_NV.t() @ x_ND)
