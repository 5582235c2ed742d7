"""What a group measures: all-reduce, and messages between two.

Bus bandwidth of an all-reduce of S bytes over n members in t seconds: 2 (n-1)/n S/t, the rate at which the slowest link must have been
used whatever the number of members (NVIDIA/nccl-tests, doc/PERFORMANCE.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from slurmtrain.preflight.probing import Order
from slurmtrain.runtime.probe.deadline import Deadline, LateError
from slurmtrain.runtime.probe.meeting import MeetingError, Place

REDUCE_BYTES = {"cpu": (1 << 20,), "cuda": (1 << 20, 1 << 28)}
PAIR_BYTES = {"cpu": (1 << 20,), "cuda": (1 << 28,)}
REPEATS = {"cpu": 5, "cuda": 20}
WARM = {"cpu": 1, "cuda": 5}
"""Rounds that do not count."""
PINGS = 20
_ELEMENT = 4
_LOOK_S = 0.0002

Works = Callable[[], Iterator[Any]]
"""Starts messages one after another; each is waited for before the next is started."""


def bus_gb_s(size: int, members: int, seconds: float) -> float:
    """Bus bandwidth of an all-reduce in 10^9 bytes a second.

    >>> bus_gb_s(10**9, 4, 1.0)
    1.5
    """
    return 2 * (members - 1) / members * size / seconds / 1e9


def reduce(order: Order, place: Place, device: torch.device, deadline: Deadline) -> dict[str, float]:
    """Figures of an all-reduce of fp32 at each size. Collective. Raises MeetingError for a sum that is wrong."""
    figures: dict[str, float] = {}
    for size in order.sizes or REDUCE_BYTES[device.type]:
        tensor = torch.full((max(1, size // _ELEMENT),), float(place.rank + 1), device=device)

        def works(tensor: torch.Tensor = tensor) -> Iterator[Any]:
            yield dist.all_reduce(tensor, async_op=True)

        timed(works, device, deadline)
        _check_sum(tensor, place)
        tensor.zero_()
        seconds = typical(works, order, device, deadline)
        figures |= {f"seconds@{size}": seconds, "seconds": seconds}
        if place.size > 1:
            rate = bus_gb_s(tensor.numel() * _ELEMENT, place.size, seconds)
            figures |= {f"busbw_gb_s@{size}": rate, "busbw_gb_s": rate}
    return figures


def _check_sum(tensor: torch.Tensor, place: Place) -> None:
    """Of the ranks' numbers, 1 + 2 + ... + n, which fp32 holds exactly."""
    wrong = int((tensor != place.size * (place.size + 1) // 2).sum())
    if wrong:
        raise MeetingError(f"wrong sum: {wrong} of {tensor.numel()} elements of an all-reduce over {place.size} members")


def pair(order: Order, place: Place, device: torch.device, deadline: Deadline) -> dict[str, float]:
    """Rates both ways and the latency between two. Collective."""
    if place.size != 2:
        raise MeetingError(f"a pair has two members, not {place.size}")
    figures = {"latency_us": _latency_s(place, device, deadline) * 1e6}
    for size in order.sizes or PAIR_BYTES[device.type]:
        data = torch.zeros(max(1, size // _ELEMENT), device=device)
        rates = [_one_way(sender, data, order, place, deadline) for sender in (0, 1)]
        for name, rate in (("send_gb_s", rates[place.rank]), ("receive_gb_s", rates[1 - place.rank])):
            figures |= {name: rate, f"{name}@{size}": rate}
    return figures


def _one_way(sender: int, data: torch.Tensor, order: Order, place: Place, deadline: Deadline) -> float:
    """Rate from `sender` to the other in 10^9 bytes a second, by the sender's clock: until the other has said that it has all."""
    device = data.device
    receipt = torch.zeros(1, device=device)
    seconds = typical(lambda: _there_and_back(sender, data, receipt, place), order, device, deadline)
    told = torch.tensor([seconds], dtype=torch.float64, device=device)
    timed(lambda: _there(sender, told, place), device, deadline)
    return data.numel() * _ELEMENT / float(told.item()) / 1e9


def _latency_s(place: Place, device: torch.device, deadline: Deadline) -> float:
    """Half of a round trip of four bytes."""
    ping, pong = torch.zeros(1, device=device), torch.zeros(1, device=device)
    return typical(lambda: _there_and_back(0, ping, pong, place), Order("pair", repeats=PINGS), device, deadline) / 2


def _there_and_back(sender: int, there: torch.Tensor, back: torch.Tensor, place: Place) -> Iterator[Any]:
    yield from _there(sender, there, place)
    yield from _there(1 - sender, back, place)


def _there(sender: int, data: torch.Tensor, place: Place) -> Iterator[Any]:
    yield dist.isend(data, 1 - sender) if place.rank == sender else dist.irecv(data, sender)


def typical(works: Works, order: Order, device: torch.device, deadline: Deadline) -> float:
    """Median seconds, after some rounds that do not count."""
    for _ in range(WARM[device.type]):
        timed(works, device, deadline)
    return median(timed(works, device, deadline) for _ in range(order.repeats or REPEATS[device.type]))


def timed(works: Works, device: torch.device, deadline: Deadline) -> float:
    """Seconds of some messages, by the device's own clock on a GPU. Raises LateError when the time is over, RuntimeError as torch does."""
    if device.type == "cuda":
        return _timed_on_gpu(works, deadline)
    began = deadline.clock.monotonic()
    for work in works():
        deadline.check("a message")
        work.wait(deadline.delta())
    return max(1e-9, deadline.clock.monotonic() - began)


def _timed_on_gpu(works: Works, deadline: Deadline) -> float:
    """`wait` of NCCL's work makes the stream wait, not this thread: the end is looked for until the time is over."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for work in works():
        work.wait()
    end.record()
    while not end.query():
        if deadline.clock.monotonic() >= deadline.at:
            raise LateError("messages did not come to an end in time")
        deadline.clock.sleep(_LOOK_S)
    return max(1e-9, start.elapsed_time(end) / 1e3)
