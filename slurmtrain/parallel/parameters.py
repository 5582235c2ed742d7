"""What everything outside sees of a parameter: plain fp32 tensors (values, gradient) and the boxes of global tensors in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from slurmtrain.boxes import Part
from slurmtrain.parallel.axis import Axis
from slurmtrain.parallel.parts import Copies


class Holder(Protocol):
    """Where the values and the gradient of one parameter lie: with the module, in a bucket, in a shard.

    Both are plain tensors of fp32, of this rank's share, sharing memory with what the next step uses; `grad` only after the
    reducer's `finish`.
    """

    @property
    def value(self) -> Tensor: ...

    @property
    def grad(self) -> Tensor: ...


@dataclass(frozen=True)
class LocalParameter:
    """One parameter of this rank, or its share of one.

    `owned`: of all ranks that hold these parts, this one counts them in the norm and saves them. `copies`, `tied`: as of its Layout.
    `decays`: weight decay is for matrices, never for norms and biases.
    """

    name: str
    holder: Holder
    parts: tuple[Part, ...]
    owned: bool
    decays: bool
    copies: Copies | None = None
    tied: bool = False

    @property
    def tensor(self) -> Tensor:
        return self.holder.value

    @property
    def grad(self) -> Tensor:
        return self.holder.grad


def sum_partial(parameters: Sequence[LocalParameter], tp: Axis | None) -> None:
    """Add up the gradients that are partial over the tensor-parallel group, in one collective.

    Where only some ranks of the group are copies of each other, every set has a slot of its own in what is sent.
    """
    chosen = [(p.copies, p.grad) for p in parameters if p.copies is not None]
    if tp is None or not chosen:
        return
    flat = torch.cat([_in_slot(copies, grad) for copies, grad in chosen])
    tp.all_reduce(flat)
    pieces = flat.split([copies.slots * grad.numel() for copies, grad in chosen])
    for (copies, grad), piece in zip(chosen, pieces, strict=True):
        grad.copy_(piece.view(copies.slots, *grad.shape)[copies.slot])


def _in_slot(copies: Copies, grad: Tensor) -> Tensor:
    if copies.slots == 1:
        return grad.flatten()
    spread = grad.new_zeros(copies.slots, *grad.shape)
    spread[copies.slot] = grad
    return spread.flatten()


def sum_tied(parameters: Sequence[LocalParameter], ends: Axis | None) -> None:
    """Add up the two gradients of an embedding that is also the head: of this rank's stages, then over the pipeline's ends."""
    grads = [p.grad for p in parameters if p.tied]
    if not grads:
        return
    total = grads[0] if len(grads) == 1 else torch.stack(grads).sum(0)
    if ends is not None:
        total = ends.all_reduce(total.contiguous())
    for grad in grads:
        grad.copy_(total)


def norm_share(parameters: Sequence[LocalParameter], power: float) -> Tensor:
    """The share of this rank in the norm of the global gradient, float64: sum of |g|^power, or the largest |g| where power is inf.

    Each parameter on its owner alone: summed (or the largest taken) over the world it counts every element of every global tensor
    once. Megatron-LM and torch clip the same quantity.
    """
    return norm_and_soundness(parameters, power)[0]


def norm_and_soundness(parameters: Sequence[LocalParameter], power: float) -> tuple[Tensor, Tensor]:
    """`norm_share`, and whether all gradients of this rank are finite (bool): of copies that others count too.

    A copy that is damaged on one rank alone must stop all; its norm costs no time, for the owner computes the same meanwhile.
    """
    chosen = [p for p in parameters if p.parts]
    if not chosen:
        device = parameters[0].tensor.device if parameters else None
        return torch.zeros((), dtype=torch.float64, device=device), torch.ones((), dtype=torch.bool, device=device)
    norms = torch.stack([torch.linalg.vector_norm(p.grad, power, dtype=torch.float64) for p in chosen])
    owned = torch.tensor([p.owned for p in chosen]).to(norms.device, non_blocking=True)
    counted = torch.where(owned, norms, 0.0)
    return counted.amax() if math.isinf(power) else counted.pow(power).sum(), norms.isfinite().all()


def scale_gradients(parameters: Sequence[LocalParameter], factor: float) -> None:
    """Multiply every gradient: normalisation, unscaling and clipping in one."""
    torch._foreach_mul_([p.grad for p in parameters], factor)
