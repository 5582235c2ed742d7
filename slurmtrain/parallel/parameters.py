"""What everything outside sees of a parameter: a plain local tensor, its gradient, and the boxes of global tensors in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from slurmtrain.boxes import Part
from slurmtrain.config.model import ModelConfig
from slurmtrain.models.initial import fill


def plain(tensor: Tensor) -> Tensor:
    """The local tensor, outside autograd; FSDP keeps parameters and gradients as DTensors around it."""
    with torch.no_grad():
        return tensor.to_local() if hasattr(tensor, "to_local") else tensor.detach()


@dataclass(frozen=True)
class LocalParameter:
    """One parameter of this rank.

    `owned`: of all ranks that hold these parts, this one counts them in the norm and saves them. `partial`: the gradient is a
    part of a sum over the tensor-parallel group (norms see T / tp positions each).
    """

    name: str
    source: nn.Parameter
    parts: tuple[Part, ...]
    owned: bool
    partial: bool

    @property
    def tensor(self) -> Tensor:
        """The values, sharing memory with the module's."""
        return plain(self.source)

    @property
    def grad(self) -> Tensor:
        """The gradient, sharing memory; only after a backward pass."""
        assert self.source.grad is not None, f"{self.name} has no gradient"
        return plain(self.source.grad)

    @property
    def decays(self) -> bool:
        """Weight decay is for matrices, never for norms."""
        return self.source.ndim > 1

    def initialise(self, model: ModelConfig, seed: int) -> None:
        """First values; what is in no part is zero and stays so, because its gradient is."""
        tensor = self.tensor
        tensor.zero_()
        for part in self.parts:
            fill(tensor, part, model, seed)


def sum_partial(parameters: Sequence[LocalParameter], group: dist.ProcessGroup | None) -> None:
    """Add up the gradients that are partial over the group, in one collective."""
    grads = [p.grad for p in parameters if p.partial]
    if group is None or not grads:
        return
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat, group=group)
    pieces = flat.split([grad.numel() for grad in grads])
    torch._foreach_copy_(grads, [piece.view_as(grad) for piece, grad in zip(pieces, grads, strict=True)])


def squared_norm(parameters: Sequence[LocalParameter]) -> Tensor:
    """The share of this rank in the squared global gradient norm, float64: each parameter on its owner alone.

    Summed over the world it counts every element of every global tensor once (Megatron-LM and torch clip the same quantity).
    """
    norms = [torch.linalg.vector_norm(p.grad, dtype=torch.float64) for p in parameters if p.owned and p.parts]
    device = parameters[0].source.device
    return torch.stack(norms).square().sum() if norms else torch.zeros((), dtype=torch.float64, device=device)


def scale_gradients(parameters: Sequence[LocalParameter], factor: float) -> None:
    """Multiply every gradient, for clipping."""
    torch._foreach_mul_([p.grad for p in parameters], factor)
