"""Boxes of global tensors: the one way in which a part of a tensor is named, stored, sought and read.

A box is an offset and a shape in the coordinates of the global tensor. A local parameter carries a list of `Part`s: each says
which box of which global tensor lies in which slice of the local tensor (one for a plain weight, three for a fused qkv, two for
gate/up, none for padding). A checkpoint is a set of boxes; loading is the intersection of boxes wanted with boxes stored.

>>> a, b = Box((0, 0), (4, 6)), Box((2, 3), (4, 6))
>>> intersect(a, b)
Box(offset=(2, 3), shape=(2, 3))
>>> intersect(a, Box((4, 0), (1, 1))) is None
True
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from math import prod
from operator import add, le

Region = tuple[tuple[int, int], ...]
"""(start, stop) for each dim of a local tensor."""


@dataclass(frozen=True)
class Box:
    """Offset and shape, one number a dim; a scalar has none."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        assert len(self.offset) == len(self.shape), (self.offset, self.shape)
        assert not self.shape or min(*self.offset, *self.shape) >= 0, self

    @property
    def volume(self) -> int:
        """Number of elements; 1 for a scalar."""
        return prod(self.shape)

    @property
    def stop(self) -> tuple[int, ...]:
        return tuple(map(add, self.offset, self.shape))

    def within(self, outer: Box) -> Region:
        """The box in the coordinates of one that holds it."""
        assert contains(outer, self), (outer, self)
        return tuple((o - base, o - base + s) for o, base, s in zip(self.offset, outer.offset, self.shape, strict=True))


@dataclass(frozen=True)
class Part:
    """Where a box of a global tensor lies in a local tensor.

    `name`: the global tensor's fixed name; `global_shape`: its whole shape; `box`: which part; `region`: which slice of the
    local tensor holds it (same extents as the box, dim by dim).
    """

    name: str
    global_shape: tuple[int, ...]
    box: Box
    region: Region

    def __post_init__(self) -> None:
        assert contains(whole(self.global_shape), self.box), self
        assert tuple(b - a for a, b in self.region) == self.box.shape, self


def whole(shape: Sequence[int]) -> Box:
    """The box of all of a tensor."""
    return Box((0,) * len(shape), tuple(shape))


def contains(outer: Box, inner: Box) -> bool:
    """Whether every element of `inner` is in `outer`."""
    same = len(outer.shape) == len(inner.shape)
    return same and all(map(le, outer.offset, inner.offset)) and all(map(le, inner.stop, outer.stop))


def intersect(a: Box, b: Box) -> Box | None:
    """The elements in both, or None where there are none."""
    assert len(a.shape) == len(b.shape), (a, b)
    start = tuple(max(x, y) for x, y in zip(a.offset, b.offset, strict=True))
    stop = tuple(min(x, y) for x, y in zip(a.stop, b.stop, strict=True))
    if any(y <= x for x, y in zip(start, stop, strict=True)):
        return None
    return Box(start, tuple(y - x for x, y in zip(start, stop, strict=True)))


def tiling_fault(shape: Sequence[int], boxes: Iterable[Box]) -> str | None:
    """None when the boxes cover the tensor, each element once; else what is wrong, in words."""
    seen = list(boxes)
    if len(seen) == 1 and seen[0].shape == shape and not any(seen[0].offset):  # many small tensors are in one
        return None
    outer = whole(shape)
    for box in seen:
        if not contains(outer, box):
            return f"box at {box.offset} of shape {box.shape} lies outside a tensor of shape {tuple(shape)}"
    if _measure([outer]) == _measure(seen):
        return None
    full = [box for box in seen if box.volume]
    if pair := _overlap(full):
        return f"boxes at {pair[0].offset} and {pair[1].offset} overlap"
    covered = sum(box.volume for box in full)
    return f"{outer.volume - covered} of {outer.volume} elements are in no box"


def _measure(boxes: Iterable[Box]) -> int:
    """A number that two lists of boxes share when they cover each element equally often, and else by a chance below 2**-57.

    Every index along every dim has a weight, an element the product of the weights of its indices, a list the sum over all elements
    of its boxes, modulo a prime. This is a polynomial in the weights, whose coefficients say how often each element is covered: two
    lists that differ are different polynomials, which take the same value at few points (Schwartz and Zippel). A box needs no more
    than sums of weights up to its ends, so these, not the weights, are what is random: costs are those of one look at each box.
    """
    total = 0
    for box in boxes:
        product = 1
        for dim, (start, extent) in enumerate(zip(box.offset, box.shape, strict=True)):
            product = product * (_up_to(dim, start + extent) - _up_to(dim, start)) % _PRIME
        total += product
    return total % _PRIME


_PRIME = (1 << 61) - 1


@lru_cache(maxsize=1 << 16)
def _up_to(dim: int, index: int) -> int:
    """The sum of the weights before an index: a number that looks random, the same each time."""
    return int.from_bytes(blake2b(f"{dim} {index}".encode(), digest_size=8).digest(), "little") % _PRIME


def _overlap(boxes: Sequence[Box]) -> tuple[Box, Box] | None:
    """Two boxes that share an element, of some that are not empty."""
    if not boxes:
        return None
    dims = range(len(boxes[0].shape))
    along = max(dims, key=lambda dim: len({box.offset[dim] for box in boxes}), default=None)
    order = sorted(boxes, key=lambda box: box.offset if along is None else (box.offset[along], *box.offset))
    for i, one in enumerate(order):
        for other in order[i + 1 :]:
            if along is not None and other.offset[along] >= one.stop[along]:
                break
            if intersect(one, other) is not None:
                return one, other
    return None
