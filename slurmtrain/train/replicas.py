"""Which ranks hold the same bits, and whether they still do.

A rank holds the boxes of its parameters, with the optimiser's moments and the moving average of each: two ranks whose parameters have
the same boxes of the same tensors must hold the same bits, for they add up the same gradients and make the same updates. Under ddp
these are all ranks of dp x cp; under zero1, zero2 and fsdp those that hold the same shard (HSDP's replicate group). Under zero1 what the
modules compute with is whole on all of dp x cp besides. Ranks of other tp and pp coordinates hold other boxes.

Every rank makes one number of each: `checksum`. They are gathered over the world, eight bytes a rank and kind, and all ranks come to the
same conclusion.

On a CPU the checksum is xxh3 of the bytes. Elsewhere it is the sum of the elements' bits, as whole numbers, times odd weights, modulo
2^64: one element that differs always changes it (an odd number has an inverse), several do but for a chance of 2^-64 as long as they
know nothing of the weights. The state is never copied to the host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor

from slurmtrain.checkpoint.group import Group
from slurmtrain.parallel.apply import Built
from slurmtrain.parallel.axis import all_gather_single
from slurmtrain.train.ema import Average
from slurmtrain.train.optimizer import Optimizer

CHUNK = 1 << 22
"""Elements at a time on a device: what a checksum needs besides is some 100 MiB."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MIX, _NEXT = 0x9E3779B97F4A7C15 - (1 << 64), 0xD1342543DE82EF95 - (1 << 64)
"""Odd; 2^64 over the golden ratio, and the multiplier of a good congruential generator (Steele and Vigna 2022)."""
KINDS = 2
"""What a rank may hold copies of: its parameters with their state; the whole values that modules compute with."""


@dataclass(frozen=True)
class Odd:
    """Ranks that hold other bits than their replicas. `certain`: they are outvoted; else none of them is known to be right."""

    ranks: tuple[int, ...]
    certain: bool


class Replicas:
    """Of one rank. Collective: all ranks learn who holds what. `place`: of this rank in the mesh, by axis."""

    def __init__(
        self,
        built: Built,
        optimizer: Optimizer,
        average: Average | None,
        *,
        place: Mapping[str, int],
        group: Group,
        world: dist.ProcessGroup | None,
    ) -> None:
        self._built, self._optimizer, self._average, self._world = built, optimizer, average, world
        self._whole = built.plan.dp_mode == "zero1" and built.axes.shard is not None
        keys = [holdings(built), f"{place['pp']} {place['tp']}" if self._whole else ""]
        everybody = group.gather(keys)
        self._keys: list[list[str]] = group.broadcast(everybody)

    @property
    def any(self) -> bool:
        """Whether any two ranks hold the same."""
        return any(count > 1 for kind in range(KINDS) for key, count in Counter(one[kind] for one in self._keys).items() if key)

    def compare(self) -> Odd | None:
        """Collective: None where all replicas are equal. Waits for the device."""
        held, whole = self._held()
        mine = torch.stack([checksum(held), checksum(whole).to(held[0].device)])
        everybody = mine.new_empty((len(self._keys) * KINDS,))
        all_gather_single(everybody, mine, group=self._world)
        sums = everybody.view(-1, KINDS).tolist()
        return odd_ones(self._keys, sums)

    def _held(self) -> tuple[list[Tensor], list[Tensor]]:
        states = [one for kept in self._optimizer.states().values() for one in kept if one is not None]
        averages = self._average.values if self._average is not None else []
        held = [*(p.tensor for p in self._built.parameters), *states, *averages]
        whole = [p.detach() for stage in self._built.stages for p in stage.parameters()] if self._whole else []
        return held, whole


def holdings(built: Built) -> str:
    """A word that two ranks share when their parameters have the same boxes of the same tensors; empty where they have none."""
    parts = [[(part.name, part.box.offset, part.box.shape) for part in p.parts] for p in built.parameters]
    return blake2b(repr(parts).encode(), digest_size=16).hexdigest() if any(parts) else ""


def odd_ones(keys: Sequence[Sequence[str]], sums: Sequence[Sequence[int]]) -> Odd | None:
    """Who is odd. `keys`, `sums`: by rank and kind; ranks whose key of a kind is the same (and not empty) should have the same sum.

    >>> odd_ones([["a"], ["a"], ["a"], ["b"]], [[1], [2], [1], [7]])
    Odd(ranks=(1,), certain=True)
    >>> odd_ones([["a"], ["a"], ["b"], ["b"]], [[1], [2], [7], [7]]), odd_ones([["a"], ["b"]], [[1], [2]])
    (Odd(ranks=(0, 1), certain=False), None)
    """
    ranks: set[int] = set()
    certain = True
    for kind in range(len(keys[0])):
        for key in sorted({one[kind] for one in keys if one[kind]}):
            alike = [rank for rank, one in enumerate(keys) if one[kind] == key]
            outvoted = _outvoted({rank: sums[rank][kind] for rank in alike})
            if outvoted is None:
                certain = False
            ranks |= set(alike if outvoted is None else outvoted)
    return Odd(tuple(sorted(ranks)), certain) if ranks else None


def _outvoted(sums: Mapping[int, int]) -> list[int] | None:
    """Ranks whose sum is not that of more than half; None where no sum is."""
    common, count = Counter(sums.values()).most_common(1)[0]
    return [rank for rank, one in sums.items() if one != common] if 2 * count > len(sums) else None


@torch.no_grad()
def checksum(tensors: Iterable[Tensor]) -> Tensor:
    """Of all bits of these tensors in this order: int64, on their device; 0 for none."""
    held = list(tensors)
    if not held:
        return torch.zeros((), dtype=torch.int64)
    return _of_bytes(held) if held[0].device.type == "cpu" else weighted_sum(held)


def _of_bytes(tensors: Sequence[Tensor]) -> Tensor:
    state = xxhash.xxh3_64()
    for tensor in tensors:
        state.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    number = state.intdigest()
    return torch.tensor(number - (1 << 64) if number >> 63 else number)


@torch.no_grad()
def weighted_sum(tensors: Sequence[Tensor], chunk: int = CHUNK) -> Tensor:
    """Sum over chunks c and elements i of bits(c, i) (weight(i) NEXT^(last - c)), modulo 2^64; any device."""
    device = tensors[0].device
    total = torch.zeros((), dtype=torch.int64, device=device)
    weights = _weights(min(chunk, max(tensor.numel() for tensor in tensors)), device)
    for tensor in tensors:
        bits = tensor.detach().contiguous().view(-1).view(_BITS[tensor.element_size()])
        for piece in bits.split(chunk):
            total = total * _NEXT + (piece.to(torch.int64) * weights[: piece.numel()]).sum()
    return total


def _weights(count: int, device: torch.device) -> Tensor:
    """Odd numbers that look random, the same everywhere."""
    mixed = torch.arange(1, count + 1, dtype=torch.int64, device=device) * _MIX
    mixed = (mixed ^ (mixed >> 29)) * _NEXT
    return (mixed ^ (mixed >> 32)) | 1
