"""What each writer says of its file, on its way to whoever commits: over a group, or as a small file in the staging folder.

`rank-00008.done-0003.json`: the word of the writer of rank 8 in the third save of this attempt, one line of JSON,
{"v":1,"seq":3,"rank":8,"error":null,"file":NAME,"size":BYTES,"sums":HEX,"tensors":{NAME:[TYPE,SHAPE,[[DATASET,START,AT,PANEL,OFFSET,
SHAPE],...]]}}, or {"v":1,"seq":3,"rank":8,"error":ONE LINE}. Such files never become part of a checkpoint.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurmtrain.boxes import Box
from slurmtrain.checkpoint.layout import FileLayout
from slurmtrain.checkpoint.saver import Header, Kinds
from slurmtrain.errors import CheckpointError
from slurmtrain.store.manifest import FileSum, Manifest, StoredBox, TensorEntry
from slurmtrain.syscalls import Syscalls, pwrite_all

_DONE = re.compile(r"rank-(\d{5,})\.done-(\d{4,})\.json")
_GO = "go-{:04d}"


def file_name(rank: int) -> str:
    """The file of the writer whose lowest rank this is."""
    return f"rank-{rank:05d}.h5"


def done_name(rank: int, seq: int) -> str:
    return f"rank-{rank:05d}.done-{seq:04d}.json"


def go_name(seq: int) -> str:
    """An empty file that whoever commits makes when the folder is ready: the other writers wait for it."""
    return _GO.format(seq)


def done_of(name: str, seq: int) -> int | None:
    """The rank whose word in this save a file of this name is; None for any other name.

    >>> done_of("rank-00008.done-0003.json", 3), done_of("rank-00008.done-0002.json", 3), done_of("go-0003", 3)
    (8, None, None)
    """
    form = _DONE.fullmatch(name)
    return int(form[1]) if form and int(form[2]) == seq else None


@dataclass(frozen=True)
class Report:
    """What a writer wrote: sums of its file, the tensors that its ranks have parts of, and its boxes by name."""

    rank: int
    file: str
    sums: FileSum
    kinds: Kinds
    boxes: Sequence[tuple[str, StoredBox]]


@dataclass(frozen=True)
class Refusal:
    """A writer that failed, and why: one line."""

    rank: int
    error: str


def report_of(rank: int, layout: FileLayout, kinds: Kinds, sums: FileSum) -> Report:
    boxes = [(spec.name, stored) for spec, stored in zip(layout.specs, layout.stored, strict=True)]
    return Report(rank, layout.file, sums, kinds, boxes)


def assemble(header: Header, reports: Sequence[Report]) -> Manifest:
    """The manifest of what all writers wrote. Raises CheckpointError where two disagree on a tensor."""
    kinds: dict[str, tuple[tuple[int, ...], str]] = {}
    boxes: dict[str, list[StoredBox]] = {}
    for one in sorted(reports, key=lambda one: one.rank):
        for name, kind in one.kinds.items():
            if kinds.setdefault(name, kind) != kind:
                raise CheckpointError(f"{name}: {kind} on rank {one.rank}, {kinds[name]} on a lower rank")
        for name, stored in one.boxes:
            boxes.setdefault(name, []).append(stored)
    tensors = {name: TensorEntry(shape, dtype, tuple(boxes.get(name, ()))) for name, (shape, dtype) in kinds.items()}
    files = {one.file: one.sums for one in sorted(reports, key=lambda one: one.rank)}
    return Manifest(header.step, header.attempt, header.tokens, header.layout, files, tensors, header.state, t=header.t)


def leave_word(calls: Syscalls, staging: Path, seq: int, word: Report | Refusal) -> None:
    """Put a writer's word where whoever commits looks for it: whole from the moment it is seen. Raises OSError."""
    path = staging / done_name(word.rank, seq)
    temporary = path.with_name(f".{path.name}.tmp")
    fd = calls.create(temporary)
    try:
        pwrite_all(calls, fd, memoryview(_encoded(word, seq)), 0)
    finally:
        calls.close(fd)
    calls.rename(temporary, path)


def read_word(path: Path) -> Report | Refusal | None:
    """The word in a file; None where it is not whole yet, which a shared file system may show for a moment. Raises OSError."""
    try:
        return _decoded(json.loads(path.read_bytes()), path)
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError):
        return None


def names_in(folder: Path) -> list[str]:
    """Names of a folder's entries; empty where it is not there. Opening the folder makes an NFS client look anew. Raises OSError."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 names are all that is wanted
    except FileNotFoundError:
        return []


def _encoded(word: Report | Refusal, seq: int) -> bytes:
    raw: dict[str, Any] = {"v": 1, "seq": seq, "rank": word.rank, "error": None}
    if isinstance(word, Refusal):
        raw["error"] = word.error
    else:
        rows: dict[str, list[Any]] = {name: [dtype, shape, []] for name, (shape, dtype) in word.kinds.items()}
        for name, one in word.boxes:
            rows[name][2].append([one.dataset, one.start, one.at, one.panel, one.box.offset, one.box.shape])
        raw |= {"file": word.file, "size": word.sums.size, "sums": "".join(word.sums.xxh3_64), "tensors": rows}
    return json.dumps(raw, separators=(",", ":")).encode() + b"\n"


def _decoded(raw: dict[str, Any], path: Path) -> Report | Refusal:
    assert done_name(raw["rank"], raw["seq"]) == path.name, path
    if raw["error"] is not None:
        return Refusal(raw["rank"], raw["error"])
    kinds = {name: (tuple(shape), dtype) for name, (dtype, shape, _) in raw["tensors"].items()}
    boxes = [
        (name, StoredBox(Box(tuple(offset), tuple(shape)), raw["file"], dataset, start, at, panel))
        for name, (_, _, rows) in raw["tensors"].items()
        for dataset, start, at, panel, offset, shape in rows
    ]
    sums = tuple(raw["sums"][i : i + 16] for i in range(0, len(raw["sums"]), 16))
    return Report(raw["rank"], raw["file"], FileSum(raw["size"], sums), kinds, boxes)
