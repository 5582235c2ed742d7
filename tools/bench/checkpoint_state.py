"""States to be saved: arrays of each rank, and which boxes of which global tensors they are."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from checkpoint_world import Member

from slurmtrain.boxes import Box, Part, whole


@dataclass(frozen=True)
class Array:
    """`array`: fp32, of the box's shape."""

    name: str
    global_shape: tuple[int, ...]
    box: Box
    array: np.ndarray

    @cached_property
    def part(self) -> Part:
        """Made once, as a trainer does."""
        return Part(self.name, self.global_shape, self.box, tuple((0, n) for n in self.box.shape))


@dataclass(frozen=True)
class Tensors:
    """`count` global tensors of one shape. `cut`: None, and each lies whole on one rank; or a dim, and each is cut along it."""

    count: int
    shape: tuple[int, ...]
    cut: int | None = None

    @property
    def nbytes(self) -> int:
        """Of all ranks together."""
        return self.count * int(np.prod(self.shape)) * 4

    def of(self, rank: int, ranks: int) -> list[tuple[str, Box]]:
        """Names and boxes of a rank."""
        names = [f"model/layers.{i}.weight" for i in range(self.count)]
        if self.cut is None:
            share = self.count // ranks
            assert share * ranks == self.count, (self, ranks)
            return [(name, whole(self.shape)) for name in names[rank * share : (rank + 1) * share]]
        each = self.shape[self.cut] // ranks
        assert each * ranks == self.shape[self.cut], (self, ranks)
        offset = tuple(rank * each if dim == self.cut else 0 for dim in range(len(self.shape)))
        shape = tuple(each if dim == self.cut else n for dim, n in enumerate(self.shape))
        return [(name, Box(offset, shape)) for name in names]


def made(tensors: Tensors, rank: int, ranks: int) -> list[Array]:
    """The arrays of a rank: finite numbers, other ones in each tensor, row and column."""
    return [Array(name, tensors.shape, box, value(name, tensors.shape, box)) for name, box in tensors.of(rank, ranks)]


def value(name: str, shape: Sequence[int], box: Box) -> np.ndarray:
    """What every rank knows a box to hold: from the tensor's name and the place of each element alone."""
    base = zlib.crc32(name.encode()) % 9973 / 7.0
    array = np.full(box.shape, base, np.float32)
    for dim, (offset, length) in enumerate(zip(box.offset, box.shape, strict=True)):
        line = np.sin(np.arange(offset, offset + length, dtype=np.float64) * (0.37 + dim)).astype(np.float32)
        array += line.reshape((-1, *(1 for _ in box.shape[dim + 1 :])))
    return array


def hold(member: Member, tensors: Tensors) -> None:
    """Make the member's state."""
    member.kept["state"] = made(tensors, member.rank, member.ranks)
    member.kept.pop("targets", None)


def targets_of(member: Member) -> list[Array]:
    """Arrays like the state's, of memory that has been touched."""
    if "targets" not in member.kept:
        member.kept["targets"] = [Array(one.name, one.global_shape, one.box, np.full_like(one.array, -1.0)) for one in member.kept["state"]]
    targets: list[Array] = member.kept["targets"]
    return targets
