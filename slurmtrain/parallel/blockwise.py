"""Attention of some queries over some keys, with the log of its sums, so that several results become one; and its gradient.

`out_BHTE = softmax(q k^T / sqrt(E)) v` over the keys given, `lse_BHT = log sum exp(q k^T / sqrt(E))`, fp32. Over several sets of keys
the result is sum_i exp(lse_i - lse) out_i with lse = log sum_i exp(lse_i) (Milakov and Gimelshein 2018; Liu et al. 2023, Ring
Attention), and the gradient of each set needs the final out and lse alone (Dao et al. 2022, FlashAttention, algorithm 4).
Keys may have fewer heads than queries: query head h reads head h // (H / K).
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

Inputs = tuple[Tensor, Tensor, Tensor]
"""q [B, H, Tq, E], k and v [B, K, Tk, E]; or their gradients."""


class Blockwise(Protocol):
    """Plain tensors outside autograd. causal: query i sees keys 0 .. i; as many queries as keys then."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
        """Out [B, H, T, E] in the dtype of q, and lse [B, H, T] in fp32."""

    def backward(self, grad: Tensor, inputs: Inputs, total: tuple[Tensor, Tensor], *, causal: bool) -> Inputs:
        """`total`: out and lse over all keys, not these alone."""


def merge(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Put the result over more keys into `out` (fp32) and `lse`, in place."""
    total = torch.logaddexp(lse, part_lse)
    out.mul_((lse - total).exp_()[..., None]).add_(part * (part_lse - total).exp_()[..., None])
    lse.copy_(total)


def blockwise_for(q: Tensor, k: Tensor) -> Blockwise:
    """The fastest that takes these shapes, dtype and device; `Plain` takes all."""
    E = q.shape[-1]
    if q.device.type == "cpu":
        return FlashCpu()
    if q.device.type == "cuda" and E % 8 == 0 and E <= 256:
        if q.dtype in (torch.bfloat16, torch.float16):
            return FlashCuda()
        if q.dtype == torch.float32 and q.shape[2] % 64 == 0 and k.shape[2] % 64 == 0:
            return EfficientCuda()
    return Plain()


class FlashCpu:
    """torch's flash attention of CPUs."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
        k, v = _spread(q, k, v)
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
        return out, lse

    def backward(self, grad: Tensor, inputs: Inputs, total: tuple[Tensor, Tensor], *, causal: bool) -> Inputs:
        (q, k, v), (out, lse) = inputs, total
        wide_k, wide_v = _spread(q, k, v)
        grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(grad, q, wide_k, wide_v, out, lse, 0.0, causal)
        return _fold(grads, k)


class FlashCuda:
    """FlashAttention-2 as torch has it: bf16 and fp16, head dims of multiples of 8 up to 256; takes grouped keys as they are."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
        out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
        return out, lse

    def backward(self, grad: Tensor, inputs: Inputs, total: tuple[Tensor, Tensor], *, causal: bool) -> Inputs:
        (q, k, v), (out, lse) = inputs, total
        seed = q.new_empty(2, dtype=torch.int64)  # of dropout, which is 0: never read
        return torch.ops.aten._scaled_dot_product_flash_attention_backward(
            grad, q, k, v, out, lse, None, None, q.shape[2], k.shape[2], 0.0, causal, seed, seed
        )


class EfficientCuda:
    """Memory-efficient attention as torch has it, for fp32; lengths of multiples of 64, so that its lse has no padding."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
        k, v = _spread(q, k, v)
        out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal)  # noqa: FBT003
        return out, lse

    def backward(self, grad: Tensor, inputs: Inputs, total: tuple[Tensor, Tensor], *, causal: bool) -> Inputs:
        (q, k, v), (out, lse) = inputs, total
        wide_k, wide_v = _spread(q, k, v)
        seed = q.new_empty(2, dtype=torch.int64)  # of dropout, which is 0: never read
        grads = torch.ops.aten._scaled_dot_product_efficient_attention_backward(
            grad, q, wide_k, wide_v, None, out, lse, seed, seed, 0.0, [True, True, True, False], causal
        )
        return _fold(grads[:3], k)


class Plain:
    """The formula itself, in fp32 and with all scores in memory: for what no kernel takes."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
        k, v = _spread(q, k, v)
        scores = _scores(q, k, causal=causal)
        lse = scores.logsumexp(-1)
        return ((scores - lse[..., None]).exp_() @ v.float()).to(q.dtype), lse

    def backward(self, grad: Tensor, inputs: Inputs, total: tuple[Tensor, Tensor], *, causal: bool) -> Inputs:
        (q, k, v), (out, lse) = inputs, total
        wide_k, wide_v = _spread(q, k, v)
        weights = (_scores(q, wide_k, causal=causal) - lse[..., None]).exp_()
        grad32 = grad.float()
        delta = (grad32 * out.float()).sum(-1, keepdim=True)
        grad_scores = weights * (grad32 @ wide_v.float().mT - delta) / math.sqrt(q.shape[-1])
        grads = grad_scores @ wide_k.float(), grad_scores.mT @ q.float(), weights.mT @ grad32
        grad_q, grad_k, grad_v = _fold(grads, k)
        return grad_q.to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype)


def _scores(q: Tensor, k: Tensor, *, causal: bool) -> Tensor:
    scores = q.float() @ k.float().mT / math.sqrt(q.shape[-1])
    if causal:
        scores.masked_fill_(torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu_(1), -math.inf)
    return scores


def _spread(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values once for each query head."""
    each = q.shape[1] // k.shape[1]
    return (k, v) if each == 1 else (k.repeat_interleave(each, 1), v.repeat_interleave(each, 1))


def _fold(grads: Inputs, k: Tensor) -> Inputs:
    """Gradients of what `_spread` made, summed over the query heads of a group."""
    (grad_q, grad_k, grad_v), heads = grads, k.shape[1]
    if grad_k.shape[1] == heads:
        return grad_q, grad_k, grad_v
    return grad_q, grad_k.unflatten(1, (heads, -1)).sum(2), grad_v.unflatten(1, (heads, -1)).sum(2)
