"""A checkpoint made by one process alone: from another one, or from files of another format. No world, no group, no run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from slurmtrain.boxes import Box, Part, whole
from slurmtrain.checkpoint.cuts import Sizing, runs_of_rows
from slurmtrain.checkpoint.dtypes import carrier
from slurmtrain.checkpoint.layout import BoxSpec, FileLayout
from slurmtrain.checkpoint.load import PartReader, Wish
from slurmtrain.checkpoint.newfolder import new_folder
from slurmtrain.checkpoint.skeleton import lay_out
from slurmtrain.checkpoint.writing import write_file
from slurmtrain.errors import CheckpointError
from slurmtrain.rundir import RunDir
from slurmtrain.store.manifest import CHUNK_BYTES, MANIFEST_NAME, FileSum, Manifest, StoredBox, TensorEntry
from slurmtrain.store.verify import index_problems, size_problems
from slurmtrain.syscalls import SYSTEM, Syscalls, write_new

BATCH_BYTES = 64 << 20
"""Small boxes are read together, so that each chunk of a file is read and compared once."""

Kinds = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and element type of global tensors by name."""
Arrays = Callable[[Sequence[BoxSpec]], Iterator[np.ndarray]]
"""The content of these boxes in turn: of the box's shape, in the carrier of its type; made when it is asked for."""
Advance = Callable[[int], None]
"""Hears of bytes of tensors that are done."""


@dataclass(frozen=True)
class Made:
    """A checkpoint that was made: its manifest, and what a person should know of it."""

    manifest: Manifest
    notes: tuple[str, ...] = ()


def kinds_of(manifest: Manifest) -> Kinds:
    """Of a checkpoint."""
    return {name: (entry.shape, entry.dtype) for name, entry in manifest.tensors.items()}


def bytes_of(kinds: Kinds) -> int:
    """Of all these tensors."""
    return sum(whole(shape).volume * carrier(dtype).itemsize for shape, dtype in kinds.values())


def plan(kinds: Kinds, sizing: Sizing, boxes: Callable[[str], Iterable[Box]] | None = None) -> list[list[BoxSpec]]:
    """The boxes of each file. `boxes`: those of a tensor by its name, cut further where they are large (default: the whole tensor)."""
    most = sizing.most_box(bytes_of(kinds))
    specs = [
        BoxSpec(name, shape, piece, dtype)
        for name, (shape, dtype) in kinds.items()
        for box in (boxes(name) if boxes else (whole(shape),))
        if box.volume
        for piece in runs_of_rows(box, carrier(dtype).itemsize, most)
    ]
    return [[specs[i] for i in numbers] for numbers in sizing.deal([spec.nbytes for spec in specs])]


def make(
    out: Path,
    header: Manifest,
    kinds: Kinds,
    files: Sequence[Sequence[BoxSpec]],
    arrays: Arrays,
    *,
    calls: Syscalls = SYSTEM,
    advance: Advance = lambda _: None,
) -> Manifest:
    """Write the new folder `out`, whole or not at all; its manifest, which has the header's fields but for files and tensors.

    In memory are a box, what `arrays` holds, and some chunks of 8 MiB. Raises UserError where `out` is taken or cannot be made,
    CheckpointError where the disk refuses, and what `arrays` raises.
    """
    sums: dict[str, FileSum] = {}
    boxes: dict[str, list[StoredBox]] = {name: [] for name in kinds}
    with new_folder(out, calls=calls) as staging:
        for number, specs in enumerate(files):
            layout = lay_out(f"rank-{number:05d}.h5", specs)
            sums[layout.file] = write_file(calls, staging / layout.file, layout, _in_file_order(layout, arrays, advance))
            for spec, stored in zip(specs, layout.stored, strict=True):
                boxes[spec.name].append(stored)
        tensors = {name: TensorEntry(shape, dtype, tuple(boxes[name])) for name, (shape, dtype) in kinds.items()}
        manifest = replace(header, files=sums, tensors=tensors, chunk_bytes=CHUNK_BYTES)
        if problems := index_problems(out, manifest) or size_problems(staging, manifest):
            raise CheckpointError(f"{out}: not made: {problems[0]}")
        write_new(calls, staging / MANIFEST_NAME, manifest.to_json())
    return manifest


def make_run(path: Path, step: int, job: bytes, inner: Callable[[Path], Made], *, calls: Syscalls = SYSTEM) -> Made:
    """Make the new folder `path` of a run that has one checkpoint, which `inner` makes where it is told; `job`: its job.json."""
    with new_folder(path, calls=calls) as staging:
        run = RunDir(staging)
        made = inner(run.checkpoint(step))
        write_new(calls, run.job_json, job)
    return made


def _in_file_order(layout: FileLayout, arrays: Arrays, advance: Advance) -> Callable[[int], np.ndarray]:
    order = sorted(range(len(layout.specs)), key=lambda i: layout.stored[i].at or 0)
    numbers, contents = iter(order), arrays([layout.specs[i] for i in order])

    def fetch(index: int) -> np.ndarray:
        assert next(numbers) == index, "boxes are asked for in the order of the file"
        array = next(contents)
        advance(array.nbytes)
        return array

    return fetch


def in_turn(reader: PartReader, specs: Sequence[BoxSpec]) -> Iterator[np.ndarray]:
    """The content of boxes out of another checkpoint, as `in_batches` has it."""

    def fill(batch: Sequence[BoxSpec], arrays: Sequence[np.ndarray]) -> None:
        reader.fill_all([Wish(part_of(spec), spec.dtype, array) for spec, array in zip(batch, arrays, strict=True)])

    return in_batches(specs, fill)


def in_batches(specs: Sequence[BoxSpec], fill: Callable[[Sequence[BoxSpec], Sequence[np.ndarray]], None]) -> Iterator[np.ndarray]:
    """Arrays of these boxes in turn, filled together as many as BATCH_BYTES allow (a larger one by itself)."""
    start = 0
    while start < len(specs):
        stop, size = start, 0
        while stop < len(specs) and (stop == start or size + specs[stop].nbytes <= BATCH_BYTES):
            size += specs[stop].nbytes
            stop += 1
        arrays = [np.empty(spec.box.shape, carrier(spec.dtype)) for spec in specs[start:stop]]
        fill(specs[start:stop], arrays)
        arrays.reverse()
        while arrays:
            yield arrays.pop()
        start = stop


def part_of(spec: BoxSpec) -> Part:
    """The box as the whole of a local tensor."""
    return Part(spec.name, spec.global_shape, spec.box, tuple((0, n) for n in spec.box.shape))
