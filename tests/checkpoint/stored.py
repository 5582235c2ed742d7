"""Checkpoints of given arrays, laid out and written as those of a run are, in as many files as a test likes; no group, no store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from slurmtrain.boxes import Box, whole
from slurmtrain.checkpoint.skeleton import BoxSpec, lay_out
from slurmtrain.checkpoint.writing import write_file
from slurmtrain.store.manifest import MANIFEST_NAME, Manifest, StoredBox, TensorEntry
from slurmtrain.store.verify import sums_of
from slurmtrain.syscalls import SystemCalls


class _Quick(SystemCalls):
    """Nothing waits for the disk."""

    def fsync(self, fd: int) -> None:
        return

    def settle(self, fd: int, offset: int, length: int) -> None:
        return


Tensor = np.ndarray | tuple[str, np.ndarray]
"""An array, or the name of an element type and an array in its carrier."""


def cut_rows(shape: tuple[int, ...], count: int) -> list[Box]:
    """At most so many runs of rows."""
    if not shape or count == 1:
        return [whole(shape)]
    ends = [shape[0] * i // count for i in range(count + 1)]
    return [Box((a, *[0] * (len(shape) - 1)), (b - a, *shape[1:])) for a, b in pairwise(ends) if b > a]


def cut_columns(shape: tuple[int, ...], count: int) -> list[Box]:
    """At most so many runs along the last dim."""
    if not shape or count == 1:
        return [whole(shape)]
    ends = [shape[-1] * i // count for i in range(count + 1)]
    head = shape[:-1]
    return [Box((*[0] * len(head), a), (*head, b - a)) for a, b in pairwise(ends) if b > a]


def store(folder: Path, step: int, tensors: Mapping[str, Tensor], *, files: int = 1, cut: Any = cut_rows, **more: Any) -> Manifest:
    """Make the folder of a checkpoint; each tensor is cut into as many boxes as there are files. `more`: fields of the manifest."""
    folder.mkdir(parents=True)
    named = {name: one if isinstance(one, tuple) else (one.dtype.name, one) for name, one in tensors.items()}
    held: list[list[tuple[str, Box]]] = [[] for _ in range(files)]
    for number, (name, (_, array)) in enumerate(named.items()):
        for i, box in enumerate(cut(array.shape, files)):
            if box.volume:
                held[(number + i) % files].append((name, box))
    sums, boxes = {}, {name: [] for name in named}  # type: ignore[var-annotated]
    for i, mine in enumerate(held):
        layout = lay_out(f"rank-{i:05d}.h5", [BoxSpec(name, named[name][1].shape, box, named[name][0]) for name, box in mine])
        sums[layout.file] = write_file(_Quick(), folder / layout.file, layout, lambda j, mine=mine: _content(named, *mine[j]))
        for (name, _), stored in zip(mine, layout.stored, strict=True):
            boxes[name].append(stored)
    index = {name: TensorEntry(array.shape, dtype, _sorted(boxes[name])) for name, (dtype, array) in named.items()}
    fields = {"attempt": 1, "tokens": step * 8, "layout": {"world": files}, "state": {}, "t": 1_700_000_000.0 + step, **more}
    manifest = Manifest(step=step, files=sums, tensors=index, **fields)
    (folder / MANIFEST_NAME).write_bytes(manifest.to_json())
    return manifest


def _sorted(boxes: Sequence[StoredBox]) -> tuple[StoredBox, ...]:
    return tuple(sorted(boxes, key=lambda one: one.box.offset))


def _content(named: Mapping[str, tuple[str, np.ndarray]], name: str, box: Box) -> np.ndarray:
    return np.asarray(named[name][1][tuple(slice(a, b) for a, b in zip(box.offset, box.stop, strict=True))])


def with_chunks(manifest: Manifest, folder: Path) -> Manifest:
    """The manifest with sums of its own size of chunks, which the writer's are not."""
    return replace(manifest, files={name: sums_of(folder / name, manifest.chunk_bytes) for name in manifest.files})


def flip(path: Path, at: int, bit: int = 0) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)
