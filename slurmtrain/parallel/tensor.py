"""Autograd functions over the tensor-parallel axis: gather and scatter of the sequence, and linears whose collectives they are.

`gather_sequence` and `scatter_sequence` are each other's gradient. All move dim 0 and give contiguous memory, forward and backward,
so that a sequence-first tensor is never copied for the collective. They can be traced by torch.compile and run again by recomputation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from slurmtrain.parallel.axis import Axis
from slurmtrain.parallel.parts import Layout

Matmul = Callable[[Tensor, Tensor], Tensor]
"""(x [..., in], weight [out, in]) -> [..., out], differentiable: the seam for FP8 libraries."""


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return axis.all_gather(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.axis.reduce_scatter(grad), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return axis.reduce_scatter(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.axis.all_gather(grad), None


class _Columns(torch.autograd.Function):
    """Gather and multiply, of which only this rank's share of the input is kept.

    Backward gathers it again beside dX = sum of dY W, and reduce-scatters dX beside dW = dY^T X (Korthikanti et al. 2022, section 4.2.2).
    """

    @staticmethod
    def forward(ctx: Any, x_SBD: Tensor, axis: Axis, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.axis = axis
        ctx.save_for_backward(x_SBD, *weights)
        x_TBD = axis.all_gather(x_SBD)
        return tuple(functional.linear(x_TBD, weight) for weight in weights)

    @staticmethod
    def backward(ctx: Any, *grads_TBF: Tensor) -> tuple[Tensor | None, ...]:
        x_SBD, *weights = ctx.saved_tensors
        gathered = ctx.axis.start_all_gather(x_SBD)
        dx_ND = grads_TBF[0].flatten(0, 1) @ weights[0]
        for grad, weight in zip(grads_TBF[1:], weights[1:], strict=True):
            dx_ND = dx_ND.addmm(grad.flatten(0, 1), weight)
        x_ND = gathered.wait().flatten(0, 1)
        scattered = ctx.axis.start_reduce_scatter(dx_ND.view(-1, *x_SBD.shape[1:]))
        dw = [grad.flatten(0, 1).t() @ x_ND for grad in grads_TBF]
        return scattered.wait(), None, *dw


def gather_sequence(x: Tensor, axis: Axis | None) -> Tensor:
    """[T / tp, B, D] of each rank to [T, B, D] on all; the gradient is the reduce-scatter."""
    return x if axis is None else _Gather.apply(x, axis)


def scatter_sequence(x: Tensor, axis: Axis | None) -> Tensor:
    """Partial sums [T, B, D] of all ranks to their sum's [T / tp, B, D] on each; the gradient is the all-gather."""
    return x if axis is None else _Scatter.apply(x, axis)


class Linear(nn.Module):
    """Weight and bias of one local linear, in which `outputs` rows of one or more global linears lie one above the other."""

    def __init__(self, weight: Layout, bias: Layout | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(weight.shape))
        self.bias = None if bias is None else nn.Parameter(torch.empty(bias.shape))
        self.outputs = [part.box.shape[0] for part in weight.parts]

    def with_bias(self, y: Tensor) -> Tensor:
        return y if self.bias is None else y + self.bias


@dataclass(frozen=True)
class Multiply:
    """How the linears of a layer multiply over the tensor-parallel axis.

    `overlap`: weight gradients are made beside the reduce-scatter of the input's, in one function; else the two stay apart, as
    schedules that run them at different times need it, and every product is `matmul`'s.
    """

    tp: Axis | None
    matmul: Matmul
    overlap: bool

    def columns(self, x_SBD: Tensor, linears: Sequence[Linear]) -> list[Tensor]:
        """Gathers the sequence: [T / tp, B, D] to a [T, B, rows] for each global linear."""
        weights = [linear.weight for linear in linears]
        if self.overlap and self.tp is not None and self.matmul is functional.linear:
            products: Sequence[Tensor] = _Columns.apply(x_SBD, self.tp, *weights)
        else:
            x_TBD = gather_sequence(x_SBD, self.tp)
            products = [self.matmul(x_TBD, weight) for weight in weights]
        return [y for product, at in zip(products, linears, strict=True) for y in at.with_bias(product).split(at.outputs, dim=-1)]

    def rows(self, x_TBF: Tensor, linear: Linear) -> Tensor:
        """Sums over the axis and scatters the sequence: [T, B, columns] to [T / tp, B, D]; the bias is added once, after the sum."""
        return linear.with_bias(scatter_sequence(self.matmul(x_TBF, linear.weight), self.tp))
