"""Saving, on numpy arrays: all ranks write, rank 0 publishes; a failure anywhere is raised everywhere (protocol: store.commit)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slurmtrain.boxes import Box
from slurmtrain.checkpoint.group import Failure, Group, captured, on_rank_0, reason_of
from slurmtrain.checkpoint.h5 import RankFileWriter, rank_file_name
from slurmtrain.clock import Clock
from slurmtrain.errors import CheckpointError
from slurmtrain.rundir import RunDir
from slurmtrain.store.commit import OwnerCheck, discard, open_staging, publish
from slurmtrain.store.manifest import FileSum, Manifest, StoredBox, TensorEntry
from slurmtrain.store.retention import RetentionPolicy, retain
from slurmtrain.syscalls import SYSTEM, Syscalls
from slurmtrain.units import counted


@dataclass(frozen=True)
class Piece:
    """A box that this rank owns: `array` has the box's shape, in the carrier type of `dtype` (checkpoint.dtypes)."""

    name: str
    global_shape: tuple[int, ...]
    box: Box
    dtype: str
    array: np.ndarray


@dataclass(frozen=True)
class Header:
    """What a checkpoint says of itself besides its tensors. `layout` and `state` are plain JSON values."""

    step: int
    attempt: int
    tokens: int
    layout: Mapping[str, Any]
    state: Mapping[str, Any]


@dataclass(frozen=True)
class SaveResult:
    """A save that is durable: how long this rank was busy with it, and bytes of all ranks' files.

    `notes`: what went wrong without harm (an old checkpoint that could not be removed), or that this step was there already.
    """

    seconds: float
    bytes: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RankReport:
    """What a rank wrote: its tensors' shapes and types, its boxes, and the sums of its file."""

    tensors: Mapping[str, tuple[tuple[int, ...], str]]
    boxes: Sequence[tuple[str, StoredBox]]
    file: str
    sums: FileSum


def save_pieces(
    run: RunDir,
    pieces: Iterable[Piece],
    header: Header,
    *,
    group: Group,
    disk: object = None,  # noqa: ARG001
    calls: Syscalls = SYSTEM,
    owner_check: OwnerCheck,
    keep: int,
    clock: Clock,
) -> SaveResult:
    """Save the pieces of all ranks as the checkpoint of `header.step`; called by every rank, `header` equal on all.

    `pieces` may be a generator (copies from a device are then made one at a time). A step that is there already and verifies is not
    written again. Raises on all ranks alike: OwnershipError, or CheckpointError naming the rank and the reason.
    """
    start = clock.monotonic()
    staging = on_rank_0(group, lambda: open_staging(run, header.step, header.attempt, owner_check, calls=calls))
    if staging is None:
        return SaveResult(clock.monotonic() - start, 0, (f"step {header.step} is there already and verifies",))
    report = captured(lambda: write_rank_file(staging, group.rank, pieces))
    reports = group.gather(report)

    def conclude() -> tuple[int, list[str]]:
        try:
            manifest = assemble(header, reports or [])
            publish(run, staging, manifest, owner_check, calls=calls)
        except BaseException as error:
            discard(staging, calls)
            if isinstance(error, OSError):
                raise CheckpointError(f"checkpoint of step {header.step} not saved: {reason_of(error)}") from error
            raise
        return manifest.total_bytes, retain(run, RetentionPolicy(keep), header.step, calls=calls, clock=clock)

    total, notes = on_rank_0(group, conclude)
    return SaveResult(clock.monotonic() - start, total, tuple(notes))


def write_rank_file(staging: Path, rank: int, pieces: Iterable[Piece]) -> RankReport:
    """Write one rank's file into the staging folder, durable when this returns. Raises CheckpointError naming the file."""
    path = staging / rank_file_name(rank)
    try:
        writer = RankFileWriter(path)
        try:
            tensors = _add_all(writer, pieces)
            return RankReport(tensors, writer.boxes, path.name, writer.close())
        except BaseException:
            writer.abort()
            raise
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{path}: {reason_of(error)}") from error


def _add_all(writer: RankFileWriter, pieces: Iterable[Piece]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Write the pieces; shape and type of each tensor by name."""
    tensors: dict[str, tuple[tuple[int, ...], str]] = {}
    for piece in pieces:
        kind = (piece.global_shape, piece.dtype)
        if tensors.setdefault(piece.name, kind) != kind:
            raise CheckpointError(f"{piece.name}: {tensors[piece.name]} and {kind} on one rank")
        writer.add(piece.name, piece.box, piece.array, piece.dtype)
    return tensors


def assemble(header: Header, reports: Sequence[RankReport | Failure]) -> Manifest:
    """The manifest of what all ranks wrote. Raises CheckpointError naming the rank that failed, or ranks that disagree."""
    failed = [f"rank {rank}: {one.message}" for rank, one in enumerate(reports) if isinstance(one, Failure)]
    if failed:
        more = f" (and {counted(len(failed) - 1, 'more rank')})" if len(failed) > 1 else ""
        raise CheckpointError(f"checkpoint of step {header.step} not saved: {failed[0]}{more}")
    whole = [one for one in reports if isinstance(one, RankReport)]
    kinds: dict[str, tuple[tuple[int, ...], str]] = {}
    boxes: dict[str, list[StoredBox]] = {}
    for rank, one in enumerate(whole):
        for name, kind in one.tensors.items():
            if kinds.setdefault(name, kind) != kind:
                raise CheckpointError(f"{name}: {kind} on rank {rank}, {kinds[name]} on a lower rank")
        for name, stored in one.boxes:
            boxes.setdefault(name, []).append(stored)
    tensors = {name: TensorEntry(shape, dtype, tuple(boxes.get(name, ()))) for name, (shape, dtype) in kinds.items()}
    files = {one.file: one.sums for one in whole}
    return Manifest(header.step, header.attempt, header.tokens, header.layout, files, tensors, header.state)
