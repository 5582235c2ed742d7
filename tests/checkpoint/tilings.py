"""Random tensors, cut at random into boxes, dealt at random over files: checkpoints that no layout would write, for readers."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from slurmtrain.boxes import Box, Part, whole
from slurmtrain.checkpoint.dtypes import carrier
from slurmtrain.checkpoint.layout import BoxSpec
from slurmtrain.checkpoint.load import Wish
from slurmtrain.checkpoint.skeleton import lay_out
from slurmtrain.checkpoint.writing import write_file
from slurmtrain.store.manifest import FileSum, Manifest, StoredBox, TensorEntry
from slurmtrain.syscalls import SYSTEM

DTYPES = ("float64", "float32", "float16", "bfloat16", "uint8", "bool", "float8_e4m3fn", "int64")
LONGEST = (1, 3000, 90, 20, 9)


@dataclass(frozen=True)
class Stored:
    """A checkpoint in a folder, and what is in it: (type, values) by name."""

    folder: Path
    manifest: Manifest
    tensors: dict[str, tuple[str, np.ndarray]]


def store_at_random(rng: random.Random, folder: Path, chunk_bytes: int) -> Stored:
    """Files of one to three "ranks"; sums are of chunks of so many bytes, taken here."""
    tensors = {f"model/t{i}": _tensor(rng) for i in range(rng.randint(1, 7))}
    held: list[list[tuple[str, Box]]] = [[] for _ in range(rng.randint(1, 3))]
    for name, (_, array) in tensors.items():
        for box in _tiles(rng, array.shape):
            rng.choice(held).append((name, box))
    files, boxes = {}, {name: list[StoredBox]() for name in tensors}
    for i, mine in enumerate(held):
        rng.shuffle(mine)
        layout = lay_out(f"rank-{i:05d}.h5", [BoxSpec(name, tensors[name][1].shape, box, tensors[name][0]) for name, box in mine])
        write_file(SYSTEM, folder / layout.file, layout, lambda j, mine=mine: cut(tensors[mine[j][0]][1], mine[j][1]))
        image = np.fromfile(folder / layout.file, np.uint8)
        sums = [xxhash.xxh3_64_hexdigest(image[at : at + chunk_bytes].data) for at in range(0, layout.size, chunk_bytes)]
        files[layout.file] = FileSum(layout.size, tuple(sums))
        for (name, _), one in zip(mine, layout.stored, strict=True):
            boxes[name].append(one)
    index = {name: TensorEntry(array.shape, dtype, tuple(boxes[name])) for name, (dtype, array) in tensors.items()}
    made = Manifest(1, 1, 0, {}, files, index, chunk_bytes=chunk_bytes)
    return Stored(folder, Manifest.from_json(made.to_json()), tensors)


def wish_at_random(rng: random.Random, stored: Stored) -> tuple[Wish, np.ndarray]:
    """A part of one of the tensors, for a target with strides of any kind; what it should be filled with."""
    name = rng.choice(list(stored.tensors))
    dtype, array = stored.tensors[name]
    start = [rng.randrange(extent) for extent in array.shape]
    stop = [rng.randint(low + 1, extent) for low, extent in zip(start, array.shape, strict=True)]
    box = Box(tuple(start), tuple(b - a for a, b in zip(start, stop, strict=True))) if rng.random() < 0.7 else whole(array.shape)
    return Wish(part_of(name, array.shape, box), dtype, _target(rng, box.shape, array.dtype)), cut(array, box)


def part_of(name: str, shape: tuple[int, ...], box: Box | None = None) -> Part:
    box = whole(shape) if box is None else box
    return Part(name, shape, box, tuple((0, n) for n in box.shape))


def cut(array: np.ndarray, box: Box) -> np.ndarray:
    return np.asarray(array[tuple(slice(a, b) for a, b in zip(box.offset, box.stop, strict=True))])


def _target(rng: random.Random, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    kind = rng.randrange(4)
    if kind == 1:
        return np.zeros(shape[::-1], dtype).T
    if kind == 2:
        wide = np.zeros((*(2 * n for n in shape), 3), dtype)
        return wide[(*(slice(None, None, 2) for _ in shape), 1)] if shape else wide[1:2].reshape(())
    if kind == 3 and shape:
        return np.zeros(shape, dtype)[::-1]
    return np.zeros(shape, dtype)


def _tensor(rng: random.Random) -> tuple[str, np.ndarray]:
    dtype, dims = rng.choice(DTYPES), rng.randrange(5)
    shape = tuple(rng.randint(1, LONGEST[dims]) for _ in range(dims))
    if dims == 2 and rng.random() < 0.4:
        shape = (rng.choice((8, 64, 128)), rng.choice((64, 512, 1024)))
    kind = carrier(dtype)
    seeded = np.random.default_rng(rng.randrange(1 << 30))
    content = seeded.integers(0, 2 if dtype == "bool" else 256, (*shape, kind.itemsize), np.uint8)
    return dtype, content.view(kind).reshape(shape)


def _tiles(rng: random.Random, shape: tuple[int, ...]) -> list[Box]:
    boxes = [whole(shape)]
    for _ in range(rng.randrange(5)):
        box = boxes.pop(rng.randrange(len(boxes)))
        dims = [dim for dim, extent in enumerate(box.shape) if extent > 1]
        if not dims:
            boxes.append(box)
            continue
        dim = rng.choice(dims)
        count = rng.randrange(1, box.shape[dim])
        boxes.append(_with(box, dim, box.offset[dim], count))
        boxes.append(_with(box, dim, box.offset[dim] + count, box.shape[dim] - count))
    return boxes


def _with(box: Box, dim: int, offset: int, extent: int) -> Box:
    offsets, extents = list(box.offset), list(box.shape)
    offsets[dim], extents[dim] = offset, extent
    return Box(tuple(offsets), tuple(extents))
