"""Ranks of the world as a checkpoint's Group, over gloo."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from slurmtrain.checkpoint.peers import Wait


class TorchGroup:
    """Objects between ranks, on a group of its own: collectives of training may be under way on the others.

    `ranks`: of the world, ascending, this one among them; only they make the group. Default: all.
    """

    def __init__(self, timeout_s: float, ranks: Sequence[int] | None = None) -> None:
        self._group: Any = dist.new_group(
            list(ranks) if ranks is not None else None,
            backend="gloo",
            timeout=timedelta(seconds=timeout_s),
            use_local_synchronization=ranks is not None,
        )
        self.rank, self.size = dist.get_rank(self._group), dist.get_world_size(self._group)

    def gather(self, value: Any) -> list[Any] | None:
        values: list[Any] | None = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, values, group_dst=0, group=self._group)
        return values

    def broadcast(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, group_src=0, group=self._group)
        return box[0]

    def highest(self, value: int) -> int:
        held = torch.tensor([value], dtype=torch.int64)
        dist.all_reduce(held, dist.ReduceOp.MAX, group=self._group)
        return int(held)

    def barrier(self) -> None:
        dist.barrier(group=self._group)

    def send(self, data: np.ndarray, to: int) -> Wait:
        return _waiting(dist.isend(torch.from_numpy(data), group=self._group, group_dst=to))

    def receive(self, into: np.ndarray, source: int) -> Wait:
        return _waiting(dist.irecv(torch.from_numpy(into), group=self._group, group_src=source))

    def close(self) -> None:
        dist.destroy_process_group(self._group)
        self._group = None
        gc.collect()  # connections are closed when nothing refers to the group any more, tracebacks neither


def _waiting(work: dist.Work | None) -> Wait:
    assert work is not None, "not a rank of this group"

    def wait() -> None:
        work.wait()

    return wait
