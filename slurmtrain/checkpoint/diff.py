"""Two checkpoints compared tensor by tensor, whatever their layouts: bits first, numbers where bits differ.

Both are read in blocks, in the order in which the first one lies in its files, each verified on the way; the memory is twice
BLOCK_BYTES and some MiB, however large a tensor is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from slurmtrain.boxes import Box, Part
from slurmtrain.checkpoint.distance import Distance, distance
from slurmtrain.checkpoint.dtypes import carrier
from slurmtrain.checkpoint.load import PartReader, Wish
from slurmtrain.store.manifest import Manifest, StoredBox, TensorEntry
from slurmtrain.store.verify import Policy

BLOCK_BYTES = 64 << 20

Stored = tuple[Path, Manifest]
"""A checkpoint: its folder and its manifest."""


@dataclass
class TensorDiff:
    """One tensor on both sides; None for a side that lacks it. `apart`: how far they are apart, its `at` of no meaning here; `at`: index
    of the first element that is farthest. Where shapes differ nothing was compared.
    """

    name: str
    dtypes: tuple[str | None, str | None]
    shapes: tuple[tuple[int, ...] | None, tuple[int, ...] | None]
    apart: Distance = field(default_factory=Distance)
    at: tuple[int, ...] | None = None

    @property
    def comparable(self) -> bool:
        """Whether there are numbers to compare."""
        return None not in self.shapes and self.shapes[0] == self.shapes[1]

    @property
    def identical(self) -> bool:
        """The same name, type, shape and bits."""
        return self.comparable and self.dtypes[0] == self.dtypes[1] and not self.apart.differing


@dataclass(frozen=True)
class _Block:
    """A box of a tensor that both sides have."""

    name: str
    box: Box


def compare(
    a: Stored,
    b: Stored,
    names: Callable[[str], bool],
    *,
    policy: Policy = "full",
    advance: Callable[[int], None] = lambda _: None,
    block_bytes: int = BLOCK_BYTES,
) -> list[TensorDiff]:
    """Every tensor of either side whose name passes `names`, by name. `advance` hears of bytes of `a` that were compared.

    Raises CorruptCheckpointError where the bytes of one of them are not those that were written, CheckpointError where it cannot be read.
    """
    every = sorted({name for side in (a, b) for name in side[1].tensors if names(name)})
    found = {name: _entry_of(name, a[1].tensors.get(name), b[1].tensors.get(name)) for name in every}
    with PartReader(*a, policy) as left, PartReader(*b, policy) as right, ThreadPoolExecutor(2) as pool:
        for batch in _batches(left.manifest, [name for name in every if found[name].comparable], block_bytes):
            mine, theirs = pool.submit(_read, left, batch), pool.submit(_read, right, batch)
            for block, x, y in zip(batch, mine.result(), theirs.result(), strict=True):
                _add(found[block.name], block.box, x, y)
            advance(sum(x.nbytes for x in mine.result()))
    return list(found.values())


def bytes_of(manifest: Manifest, names: Callable[[str], bool]) -> int:
    """Of the tensors whose names pass: what `compare` reads of a side that has them all."""
    return sum(
        carrier(entry.dtype).itemsize * sum(one.box.volume for one in entry.boxes)
        for name, entry in manifest.tensors.items()
        if names(name)
    )


def _entry_of(name: str, a: TensorEntry | None, b: TensorEntry | None) -> TensorDiff:
    return TensorDiff(name, (a.dtype if a else None, b.dtype if b else None), (a.shape if a else None, b.shape if b else None))


def _batches(manifest: Manifest, names: Sequence[str], limit: int) -> Iterator[list[_Block]]:
    """Blocks of these tensors in the order of the files, as many together as the limit allows (one at least)."""
    boxes = [(one, name) for name in names for one in manifest.tensors[name].boxes]
    boxes.sort(key=lambda pair: (pair[0].file, pair[0].at or 0))
    batch: list[_Block] = []
    room = limit
    for stored, name in boxes:
        width = carrier(manifest.tensors[name].dtype).itemsize
        for box in _runs(stored, max(1, limit // width)):
            size = box.volume * width
            if batch and size > room:
                yield batch
                batch, room = [], limit
            batch.append(_Block(name, box))
            room -= size
    if batch:
        yield batch


def _runs(stored: StoredBox, most: int) -> Iterator[Box]:
    """A stored box as boxes of at most so many elements, each a run of its file."""
    box, panel = stored.box, stored.panel
    if not panel:
        yield from split(box, most)
        return
    (top, left), (rows, columns) = box.offset, box.shape
    for start in range(0, columns, panel):
        yield from split(Box((top, left + start), (rows, panel)), most)


def split(box: Box, most: int) -> Iterator[Box]:
    """Boxes of at most so many elements, in row-major order, as few as that order allows.

    >>> list(split(Box((4, 0), (3, 2)), 4))
    [Box(offset=(4, 0), shape=(2, 2)), Box(offset=(6, 0), shape=(1, 2))]
    """
    if box.volume <= most:
        yield box
        return
    dim = next(i for i, n in enumerate(box.shape) if n > 1)
    count = max(1, most // (box.volume // box.shape[dim]))
    for start in range(0, box.shape[dim], count):
        offset, shape = list(box.offset), list(box.shape)
        offset[dim] += start
        shape[dim] = min(count, shape[dim] - start)
        yield from split(Box(tuple(offset), tuple(shape)), most)


def _read(reader: PartReader, batch: Sequence[_Block]) -> list[np.ndarray]:
    """The content of each block."""
    arrays = []
    wishes = []
    for block in batch:
        entry = reader.manifest.tensors[block.name]
        target = np.empty(block.box.shape, carrier(entry.dtype))
        part = Part(block.name, entry.shape, block.box, tuple((0, n) for n in block.box.shape))
        wishes.append(Wish(part, entry.dtype, target))
        arrays.append(target)
    reader.fill_all(wishes)
    return arrays


def _add(found: TensorDiff, box: Box, x: np.ndarray, y: np.ndarray) -> None:
    a_type, b_type = found.dtypes
    assert a_type is not None
    assert b_type is not None
    here = distance(x, a_type, y, b_type)
    if found.apart.include(here):
        assert here.at is not None
        found.at = tuple(int(o + i) for o, i in zip(box.offset, np.unravel_index(here.at, box.shape), strict=True))
