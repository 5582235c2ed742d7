"""The ranks of the world as a checkpoint's Group, over gloo."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist


class TorchGroup:
    """Objects between ranks, on a group of its own: collectives of training may be under way on the others."""

    def __init__(self, timeout_s: float) -> None:
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def gather(self, value: Any) -> list[Any] | None:
        values: list[Any] | None = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, values, dst=0, group=self._group)
        return values

    def broadcast(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def barrier(self) -> None:
        dist.barrier(group=self._group)
