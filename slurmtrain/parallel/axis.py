"""The ranks along one mesh axis, as this rank's collectives see them; and how long it waited for them.

Every collective moves dim 0 of contiguous memory, takes and gives plain tensors outside autograd, and returns what is contiguous.
An axis of size 1 is None everywhere: alone, nothing to communicate.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from slurmtrain.parallel.keep import kept
from slurmtrain.telemetry.heartbeat import Heart, SilentHeart

# torch 2.13 gave these new names; before it they are called *_tensor.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def _later() -> bool:
    """Whether a collective may be left under way: a compiler traces only those that end where they begin."""
    return not torch.compiler.is_compiling()


class Meter:
    """Seconds that this rank spent waiting, by name, since they were last taken. `active=False`: nothing is measured. `heart` counts the
    collectives that are entered.

    On a GPU a pair of events is recorded around each wait, on the stream that waits. `take` never waits for the GPU: what it has not
    come to yet (the end of a step, after the host's only wait) counts in the next take.
    """

    def __init__(self, device: torch.device, *, active: bool = True, heart: Heart | None = None) -> None:
        self._cuda, self._active = device.type == "cuda", active
        self._heart = heart or SilentHeart()
        self._seconds: dict[str, float] = {}
        self._events: list[tuple[str, Any, Any]] = []

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Count what is inside under a name."""
        if not self._active:
            yield
        elif self._cuda:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            yield
            end.record()
            self._events.append((name, start, end))
        else:
            began = time.perf_counter()
            yield
            self.add(name, time.perf_counter() - began)

    def enter(self) -> None:
        """A collective is about to be entered. One that is compiled is not counted: its graph runs without us."""
        if not torch.compiler.is_compiling():
            self._heart.enter()

    def add(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def take(self) -> dict[str, float]:
        """What was measured since the last call."""
        events, self._events = self._events, []
        for name, start, end in events:
            if end.query():
                self.add(name, start.elapsed_time(end) / 1e3)
            else:
                self._events.append((name, start, end))
        taken, self._seconds = self._seconds, {}
        return taken


@dataclass(frozen=True)
class _Works:
    """Several transfers that are waited for together. `sent`: lives until then."""

    works: list[dist.Work]
    sent: Tensor

    def wait(self) -> None:
        for work in self.works:
            work.wait()


@dataclass(frozen=True)
class Pending:
    """A collective under way: `wait` gives its result."""

    out: Tensor
    work: dist.Work | _Works | None
    name: str
    meter: Meter

    def wait(self) -> Tensor:
        if self.work is not None:
            if torch.compiler.is_compiling():
                self.work.wait()
            else:
                with self.meter.time(self.name):
                    self.work.wait()
        return self.out


@dataclass(frozen=True)
class Axis:
    """`name`: of the mesh axis, also in metrics. `size` is 2 or more."""

    name: str
    group: dist.ProcessGroup
    size: int
    index: int
    meter: Meter

    def all_gather(self, x: Tensor) -> Tensor:
        """[n, ...] of each rank to [size * n, ...] on all, in the order of the ranks."""
        return self.start_all_gather(x).wait()

    def start_all_gather(self, x: Tensor) -> Pending:
        def begin() -> tuple[Tensor, dist.Work | None]:
            self.meter.enter()
            out = x.new_empty(x.shape[0] * self.size, *x.shape[1:])
            return out, all_gather_single(out, x.contiguous(), group=self.group, async_op=_later())

        return self._pending(*kept("all_gather", begin))

    def reduce_scatter(self, x: Tensor) -> Tensor:
        """Sum of all ranks' [size * n, ...], of which this rank gets its [n, ...]."""
        return self.start_reduce_scatter(x).wait()

    def start_reduce_scatter(self, x: Tensor) -> Pending:
        def begin() -> tuple[Tensor, dist.Work | None]:
            self.meter.enter()
            out = x.new_empty(x.shape[0] // self.size, *x.shape[1:])
            return out, reduce_scatter_single(out, x.contiguous(), group=self.group, async_op=_later())

        return self._pending(*kept("reduce_scatter", begin))

    def all_reduce(self, x: Tensor, op: Any = dist.ReduceOp.SUM) -> Tensor:
        """In place, over contiguous memory; gives it back."""
        return self.start_all_reduce(x, op).wait()

    def start_all_reduce(self, x: Tensor, op: Any = dist.ReduceOp.SUM) -> Pending:
        assert x.is_contiguous()
        self.meter.enter()
        return self._pending(x, dist.all_reduce(x, op=op, group=self.group, async_op=_later()))

    def all_to_all(self, x: Tensor) -> Tensor:
        """Piece j of dim 0 (equal pieces) goes to rank j; gives the pieces of all ranks in their order."""

        def begin() -> tuple[Tensor, dist.Work | None]:
            self.meter.enter()
            out = torch.empty_like(x, memory_format=torch.contiguous_format)
            return out, dist.all_to_all_single(out, x.contiguous(), group=self.group, async_op=_later())

        return self._pending(*kept("all_to_all", begin)).wait()

    def start_shift(self, x: Tensor) -> Pending:
        """Each rank's x to the next rank, of the last to the first; gives that of the rank before. x stays as it is until then."""
        self.meter.enter()
        sent, out = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
        after, before = (self.index + 1) % self.size, (self.index - 1) % self.size
        send = dist.P2POp(dist.isend, sent, group=self.group, group_peer=after)
        receive = dist.P2POp(dist.irecv, out, group=self.group, group_peer=before)
        return self._pending(out, _Works(dist.batch_isend_irecv([send, receive]), sent))

    def _pending(self, out: Tensor, work: dist.Work | _Works | None) -> Pending:
        return Pending(out, work, self.name, self.meter)
