"""What multiplies in the linears: torch's own product, or one whose operands are rounded to 8 bits with a scale for each tensor.

x and w are taken to e4m3, the gradient of y to e5m2 (Micikevicius et al. 2022, section 3.1), each scaled so that its largest element
becomes the largest that the type holds. Largest of the whole tensor, not of this rank's cut: the maximum is taken over the axes along
which an operand may be cut (tp, cp), so that every layout rounds to the same values; an operand that is whole on each rank has the
same maximum everywhere, and loses nothing. Micro-batches have scales of their own, as they have on one process.

`fp8-emulated` rounds, and multiplies in the operands' own type. `torchao-fp8` gives the same rounded values to torchao's product.
Both leave the two gradients of a product to separate functions, so that schedules that make them at different times may.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from slurmtrain.errors import ConfigError
from slurmtrain.parallel.axes import Axes
from slurmtrain.parallel.axis import Axis

Matmul = Callable[[Tensor, Tensor], Tensor]
Kind = Literal["native", "fp8-emulated", "torchao-fp8"]

_OPERAND, _GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2
_SMALLEST = 1e-12
"""Below it an element counts as zero: a tensor of zeros has a finite scale (torchao's value)."""
_CAPABILITY = (8, 9)
"""CUDA's number of the first GPUs with 8-bit products (Ada; Hopper is 9.0)."""


def matmul_for(kind: Kind, axes: Axes) -> Matmul:
    """The product x [..., in], w [out, in] -> [..., out] that a job asks for.

    Raises ConfigError for torchao's where it is not installed, or the device cannot.
    """
    if kind == "native":
        return functional.linear
    cut = tuple(axis for axis in (axes.tp, axes.cp) if axis is not None)
    return _emulated(cut) if kind == "fp8-emulated" else torchao_matmul(cut, emulate=False)


def rounded(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The nearest values that the 8-bit type holds under a scale, in x's own type; NaN throughout where x is not finite."""
    limit = torch.finfo(dtype).max
    return ((x.float() * scale).clamp(-limit, limit).to(dtype).float() / scale).to(x.dtype)


def scales_of(cut: tuple[Axis, ...], dtype: torch.dtype, *tensors: Tensor) -> Tensor:
    """One scale for each tensor, in one collective per axis."""
    largest = torch.stack([torch.linalg.vector_norm(x.detach(), math.inf, dtype=torch.float32) for x in tensors])
    for axis in cut:
        axis.all_reduce(largest, dist.ReduceOp.MAX)
    return torch.finfo(dtype).max / largest.clamp(min=_SMALLEST)


class _Rounded(torch.autograd.Function):
    """`rounded`, whose gradient passes as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:  # noqa: ARG004
        return rounded(x, scale, _OPERAND).contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return grad.contiguous(), None


class _RoundedGradient(torch.autograd.Function):
    """Passes its input, and rounds the gradient."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, cut: tuple[Axis, ...]) -> Tensor:
        ctx.cut = cut
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return rounded(grad, scales_of(ctx.cut, _GRADIENT, grad)[0], _GRADIENT).contiguous(), None


def _emulated(cut: tuple[Axis, ...]) -> Matmul:
    def matmul(x: Tensor, w: Tensor) -> Tensor:
        x_scale, w_scale = scales_of(cut, _OPERAND, x, w).unbind()
        y = functional.linear(_Rounded.apply(x, x_scale), _Rounded.apply(w, w_scale))
        return _RoundedGradient.apply(y, cut)

    return matmul


def torchao_matmul(cut: tuple[Axis, ...], *, emulate: bool) -> Matmul:
    """The 8-bit product of torchao under our scales. `emulate`: in its own emulation, for devices that have no such product.

    Raises ConfigError where torchao is not there, or the device cannot.
    """
    fault = None if emulate else _device_fault()
    try:
        linear, tensors, configs = (
            import_module(f"torchao.float8.{name}") for name in ("float8_linear", "float8_training_tensor", "config")
        )
    except ImportError as error:
        fault = fault or f"needs torchao in the job's Python ({error}): install slurmtrain[fp8] there"
    if fault is not None:
        raise ConfigError(f'{fault}, or use "native" or "fp8-emulated"', where="job", key="training.matmul", value="torchao-fp8")
    config = configs.Float8LinearConfig(emulate=emulate)
    fast, exact = (tensors.ScaledMMConfig(emulate, fast_accum, fp8_output=False, pad_inner_dim=True) for fast_accum in (True, False))
    products = tensors.LinearMMConfig(fast, exact, exact)
    role, to_float8 = tensors.GemmInputRole, tensors.hp_tensor_and_scale_to_float8

    class Gradient(torch.autograd.Function):
        """Passes its input; the gradient goes on as torchao's tensor of 8 bits."""

        @staticmethod
        def forward(ctx: Any, y: Tensor) -> Tensor:  # noqa: ARG004
            return y.view_as(y)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ARG004
            grad = grad.contiguous()
            return to_float8(grad, scales_of(cut, _GRADIENT, grad)[0], _GRADIENT, products, role.GRAD_OUTPUT)

    def matmul(x: Tensor, w: Tensor) -> Tensor:
        x_scale, w_scale = scales_of(cut, _OPERAND, x, w).unbind()
        x_8 = to_float8(x, x_scale, _OPERAND, products, role.INPUT)
        w_8 = to_float8(w, w_scale, _OPERAND, products, role.WEIGHT)
        return Gradient.apply(linear.matmul_with_hp_or_float8_args.apply(x_8, w_8.t(), products, config))

    return matmul


def _device_fault() -> str | None:
    if not torch.cuda.is_available():
        return "needs a GPU, and this process sees none"
    found = torch.cuda.get_device_capability()
    if found >= _CAPABILITY:
        return None
    words, least = (".".join(str(n) for n in pair) for pair in (found, _CAPABILITY))
    return f"needs a GPU of compute capability {least} or more, and {torch.cuda.get_device_name()} has {words}"
