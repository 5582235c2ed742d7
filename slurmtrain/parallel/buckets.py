"""Gradients in flat fp32 buckets, sent while the backward pass still runs.

Buckets are this package's own. torch's DistributedDataParallel lays its buckets out anew after the first step, and a ring
all-reduce of three or more ranks rounds by the place of a number in its buffer: a resumed run would not repeat, bit for bit, the
one that never stopped. Here the buckets never change, nothing averages, and any pipeline schedule may run on top.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

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


@dataclass(frozen=True)
class Held:
    """A Holder of tensors that stay where they are."""

    value: Tensor
    grad: Tensor


class Bucket(Protocol):
    """Some parameters, by their place in it; their gradients in one flat tensor; how these become sums over ranks."""

    held: Sequence[Held]

    def zero(self) -> None: ...

    def take(self, place: int) -> None:
        """Add what is in the parameter's `grad` and not here yet."""

    def send(self) -> None:
        """Start the sum; nothing is added any more."""

    def relay(self) -> None:
        """Start the second sum where there are two, once the first has come."""

    def receive(self) -> None:
        """Wait for the sums."""

    def start_publish(self) -> None: ...

    def end_publish(self) -> None:
        """The module's parameters have the values."""


class Buckets:
    """A Reducer. A bucket is sent once each of its parameters has had as many backward passes as the step has; buckets go in a
    fixed order, the same on all ranks. What no hook told of (weight gradients that a schedule makes by itself) goes in `finish`.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], make: Callable[[list[nn.Parameter]], Bucket], limit_bytes: int = BUCKET_BYTES
    ) -> None:
        names, tensors = list(parameters), list(parameters.values())
        plan = bucket_plan([4 * p.numel() for p in tensors], limit_bytes)
        self._buckets = [make([tensors[i] for i in indices]) for indices in plan]
        held = {
            names[i]: one for bucket, indices in zip(self._buckets, plan, strict=True) for i, one in zip(indices, bucket.held, strict=True)
        }
        self.holders: Mapping[str, Held] = {name: held[name] for name in names}
        self._left = [0] * len(plan)
        self._sent = 0
        for number, indices in enumerate(plan):
            for place, index in enumerate(indices):
                tensors[index].register_post_accumulate_grad_hook(partial(self._ready, number, place))

    def start(self, passes: int) -> None:
        self._left = [passes * len(bucket.held) for bucket in self._buckets]
        self._sent = 0
        for bucket in self._buckets:
            bucket.zero()

    def before_backward(self, last: bool) -> None:  # noqa: FBT001 the runner's callback
        """Nothing: passes are counted."""

    def finish(self) -> None:
        for bucket in self._buckets[self._sent :]:
            for place in range(len(bucket.held)):
                bucket.take(place)
            self._send()
        if self._sent:
            self._buckets[self._sent - 1].relay()
        for bucket in self._buckets:
            bucket.receive()

    def publish(self) -> None:
        """Two buckets under way at a time."""
        for number, bucket in enumerate(self._buckets):
            bucket.start_publish()
            if number:
                self._buckets[number - 1].end_publish()
        if self._buckets:
            self._buckets[-1].end_publish()

    def _ready(self, number: int, place: int, _: Tensor) -> None:
        self._buckets[number].take(place)
        self._left[number] -= 1
        assert self._left[number] >= 0, f"bucket {number} had more backward passes than the step has"
        while self._sent < len(self._buckets) and self._left[self._sent] == 0:
            self._send()

    def _send(self) -> None:
        if self._sent:
            self._buckets[self._sent - 1].relay()
        self._buckets[self._sent].send()
        self._sent += 1
