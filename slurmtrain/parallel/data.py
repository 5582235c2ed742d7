"""Data parallelism: replicas whose gradients are summed in buckets, or FSDP2 over the local tensors.

Replicas are this module's own. torch's DistributedDataParallel lays its buckets out anew after the first step, and a ring
all-reduce of three or more ranks rounds by the place of a number in its buffer: a resumed run would not repeat, bit for bit, the
one that never stopped. Here the buckets never change, nothing averages, and any pipeline schedule may run on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

BUCKET_BYTES = 25 << 20


def bucket_plan(sizes: Sequence[int], limit: int) -> list[list[int]]:
    """Indices of consecutive tensors per bucket, last first (as backward makes gradients), at most `limit` a bucket.

    >>> bucket_plan([5, 1, 9, 3], 10)
    [[3], [2, 1], [0]]
    """
    plan: list[list[int]] = []
    room = -1
    for index in reversed(range(len(sizes))):
        if sizes[index] > room:
            plan.append([])
            room = limit
        plan[-1].append(index)
        room -= sizes[index]
    return plan


class Replicas:
    """Sums the gradients of identical parameters over a group while the backward pass still runs.

    Gradients live in flat buckets. A bucket is sent once each of its parameters has had as many backward passes as the step has
    micro-batches; buckets go in a fixed order, the same on all ranks.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], passes: int, group: dist.ProcessGroup, limit_bytes: int = BUCKET_BYTES) -> None:
        self._passes, self._group = passes, group
        plan = bucket_plan([p.numel() * p.element_size() for p in parameters], limit_bytes)
        self._buckets = [self._bucket([parameters[i] for i in indices]) for indices in plan]
        self._full = [passes * len(indices) for indices in plan]
        self._work: list[dist.Work] = []
        self._left = list(self._full)
        for number, indices in enumerate(plan):
            for index in indices:
                parameters[index].register_post_accumulate_grad_hook(lambda _, number=number: self._ready(number))

    @staticmethod
    def _bucket(parameters: Sequence[nn.Parameter]) -> Tensor:
        flat = torch.zeros(sum(p.numel() for p in parameters), dtype=parameters[0].dtype, device=parameters[0].device)
        for parameter, piece in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = piece.view_as(parameter)
        return flat

    def start(self) -> None:
        """Before the first backward pass of a step: gradients to zero."""
        self._left = list(self._full)
        self._work = []
        for flat in self._buckets:
            flat.zero_()

    def _ready(self, number: int) -> None:
        self._left[number] -= 1
        while len(self._work) < len(self._buckets) and self._left[len(self._work)] == 0:
            work = dist.all_reduce(self._buckets[len(self._work)], group=self._group, async_op=True)
            assert work is not None
            self._work.append(work)

    def finish(self) -> None:
        """After the last backward pass: wait for the sums."""
        assert len(self._work) == len(self._buckets), f"{len(self._buckets) - len(self._work)} buckets were never filled"
        for work in self._work:
            work.wait()


def shard(module: nn.Module, blocks: Sequence[nn.Module], group: dist.ProcessGroup, device: torch.device, *, keep_unsharded: bool) -> None:
    """FSDP2: `fully_shard` each block, then the root, over the data-parallel group; gradients are summed, not averaged.

    `keep_unsharded`: keep weights whole between forward and backward (with a pipeline, where micro-batches interleave).
    """
    from torch.distributed.device_mesh import DeviceMesh  # noqa: PLC0415  a second of imports that replicas do not need
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    mesh = DeviceMesh.from_group(group, device.type, mesh_dim_names=("dp",))
    for part in (*blocks, module):
        sharded: Any = fully_shard(part, mesh=mesh, reshard_after_forward=not keep_unsharded)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)  # gloo has no pre-multiplied sum


def synchronise(module: Any, last: bool) -> None:  # noqa: FBT001
    """Whether the next backward pass of an FSDP module reduces the gradients (the last one of a step) or only adds them up."""
    module.set_requires_gradient_sync(last)
