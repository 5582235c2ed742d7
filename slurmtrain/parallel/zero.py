"""zero1: each rank of a shard group has the values and the gradient sums of some rows of every parameter.

Of a parameter of R rows rank j has ceil(R / size) from row j ceil(R / size) on, the last ranks fewer or none: FSDP2's cut. A bucket
is laid out rank by rank, so that one reduce-scatter gives each its rows of all the bucket's parameters, and one all-gather takes
the values back.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from slurmtrain.parallel.axis import Axis, Pending
from slurmtrain.parallel.buckets import Held


class ShardBucket:
    """Rows of some parameters. Each pass's gradient is added to the bucket and dropped. In fp32 the values are rows of the module's
    own parameters, in other dtypes fp32 masters of this rank's rows alone.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], shard: Axis, replicate: Axis | None, dtype: torch.dtype, wire: torch.dtype
    ) -> None:
        self._parameters, self._shard, self._replicate, self._dtype, self._wire = parameters, shard, replicate, dtype, wire
        self._starts = [0]
        for parameter in parameters:
            self._starts.append(self._starts[-1] + _rows_each(parameter, shard.size) * prod(parameter.shape[1:]))
        device = parameters[0].device
        self._flat = torch.zeros(shard.size * self._starts[-1], device=device)
        self._slots = [self._in_order_of_ranks(self._flat, place) for place in range(len(parameters))]
        self._sum = torch.zeros(self._starts[-1], device=device)
        self._pending: Pending | None = None
        self._gathering: Pending | None = None
        values = [self._rows_of(p) for p in parameters]
        self._masters: Tensor | None = None
        if dtype != torch.float32:
            self._masters = torch.zeros_like(self._sum)
            masters = self._mine(self._masters)
            torch._foreach_copy_(masters, values)
            values = masters
            for parameter in parameters:
                parameter.data = parameter.data.to(dtype)
        self.held: Sequence[Held] = [Held(value, grad) for value, grad in zip(values, self._mine(self._sum), strict=True)]

    def zero(self) -> None:
        self._flat.zero_()
        for parameter in self._parameters:
            parameter.grad = None

    def take(self, place: int) -> None:
        parameter = self._parameters[place]
        if parameter.grad is not None:
            for slot, rows in self._slots[place]:
                slot.add_(parameter.grad[rows].reshape(slot.shape))
            parameter.grad = None

    def send(self) -> None:
        self._pending = self._shard.start_reduce_scatter(self._flat.to(self._wire))

    def relay(self) -> None:
        if self._replicate is not None:
            assert self._pending is not None
            self._pending = self._replicate.start_all_reduce(self._pending.wait())

    def receive(self) -> None:
        assert self._pending is not None
        self._sum.copy_(self._pending.wait())
        self._pending = None

    def start_publish(self) -> None:
        if self._masters is None:
            mine = torch.zeros_like(self._sum)
            torch._foreach_copy_(self._mine(mine), [one.value for one in self.held])
        else:
            mine = self._masters.to(self._dtype)
        self._gathering = self._shard.start_all_gather(mine)

    def end_publish(self) -> None:
        assert self._gathering is not None
        gathered, self._gathering = self._gathering.wait(), None
        for place, parameter in enumerate(self._parameters):
            for slot, rows in self._in_order_of_ranks(gathered, place):
                whole = parameter.detach()[rows]
                whole.view(slot.shape).copy_(slot)

    def _in_order_of_ranks(self, flat: Tensor, place: int) -> list[tuple[Tensor, slice]]:
        """Where a parameter's rows lie in a tensor of all ranks' rows: those of the ranks that have their full number, then the rest."""
        shape, size, start = self._parameters[place].shape, self._shard.size, self._starts[place]
        each, width, stride = _rows_each(self._parameters[place], size), prod(shape[1:]), self._starts[-1]
        full = shape[0] // each
        found = [(flat.as_strided((full, each * width), (stride, 1), start), slice(0, full * each))]
        if rest := shape[0] - full * each:
            found.append((flat[full * stride + start :][: rest * width], slice(full * each, shape[0])))
        return found

    def _mine(self, flat: Tensor) -> list[Tensor]:
        """Views of this rank's rows of each parameter in a tensor of this rank's rows."""
        rows = [self._rows_of(p) for p in self._parameters]
        return [flat[start : start + r.numel()].view(r.shape) for start, r in zip(self._starts[:-1], rows, strict=True)]

    def _rows_of(self, parameter: nn.Parameter) -> Tensor:
        each = _rows_each(parameter, self._shard.size)
        return parameter.detach()[self._shard.index * each : (self._shard.index + 1) * each]


def _rows_each(parameter: Tensor, size: int) -> int:
    return -(-parameter.shape[0] // size)
