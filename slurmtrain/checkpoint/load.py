"""Finding and loading, on numpy arrays: the newest checkpoint that verifies, and boxes wanted by intersection with boxes stored."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from slurmtrain.boxes import Part, intersect
from slurmtrain.checkpoint.group import Failure, Group, captured
from slurmtrain.checkpoint.h5 import RankFileReader
from slurmtrain.errors import CheckpointError
from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import Found, newest_verified
from slurmtrain.store.manifest import MANIFEST_NAME, Manifest, TensorEntry
from slurmtrain.store.verify import sum_problems

OPEN_FILES = 64


def find_checkpoint(run: RunDir, group: Group) -> Found | None:
    """The newest checkpoint that verifies, the same on every rank, and what was passed over; None when there is none at all.

    Rank 0 lists, reads manifests and sizes; the sums of the files are shared out over all ranks. Raises CorruptCheckpointError on
    all ranks when there are checkpoints and none verifies.
    """
    outcome = _lead(run, group) if group.rank == 0 else _follow(group)
    if isinstance(outcome, Failure):
        raise outcome.error()
    return outcome


def _lead(run: RunDir, group: Group) -> Found | Failure | None:
    def spread(folder: Path, manifest: Manifest) -> list[str]:
        group.broadcast((folder, manifest))
        return [problem for problems in group.gather(_share(folder, manifest, group)) or [] for problem in problems]

    outcome = captured(lambda: newest_verified(run.checkpoints, spread))
    group.broadcast(outcome)
    return outcome


def _follow(group: Group) -> Found | Failure | None:
    while isinstance(order := group.broadcast(None), tuple):
        folder, manifest = order
        group.gather(_share(folder, manifest, group))
    return order


def _share(folder: Path, manifest: Manifest, group: Group) -> list[str]:
    """Problems in this rank's share of the files."""
    names = sorted(manifest.files)[group.rank :: group.size]
    problems = captured(lambda: sum_problems(folder, manifest, names))
    return [f"rank {group.rank}: {problems.message}"] if isinstance(problems, Failure) else problems


class PartReader:
    """Fills arrays with parts of global tensors from a checkpoint; keeps some files open between calls."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self._open: dict[str, RankFileReader] = {}

    def fill(self, part: Part, dtype: str, target: np.ndarray) -> None:
        """Read the part's box into `target` (of the box's shape, any strides, carrier type of `dtype`).

        Raises CheckpointError, naming tensor and file, for a name that is not there, another global shape or type, and bytes that
        cannot be read; CorruptCheckpointError where the file is not what the manifest says.
        """
        entry = self._entry(part, dtype)
        missing = part.box.volume
        for stored in entry.boxes:
            common = intersect(stored.box, part.box)
            if common is None:
                continue
            place = tuple(slice(a, b) for a, b in common.within(part.box))
            try:
                self._file(stored.file).read(stored, common, dtype, target[place] if place else target)
            except CheckpointError as error:
                raise type(error)(f"{part.name}: {error}") from error
            missing -= common.volume
        if missing:
            raise CheckpointError(f"{part.name}: {missing} elements of the box at {part.box.offset} are in no file of {self.folder}")

    def _entry(self, part: Part, dtype: str) -> TensorEntry:
        where = self.folder / MANIFEST_NAME
        entry = self.manifest.tensors.get(part.name)
        if entry is None:
            raise CheckpointError(f"{part.name}: not in {where}, which holds {len(self.manifest.tensors)} tensors")
        if entry.shape != part.global_shape:
            raise CheckpointError(f"{part.name}: shape {entry.shape} in {where}, {part.global_shape} in this model")
        if entry.dtype != dtype:
            raise CheckpointError(f"{part.name}: {entry.dtype} in {where}, {dtype} in this model")
        return entry

    def _file(self, name: str) -> RankFileReader:
        if name not in self._open:
            if len(self._open) >= OPEN_FILES:
                self._open.pop(next(iter(self._open))).close()
            self._open[name] = RankFileReader(self.folder / name)
        return self._open[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for reader in self._open.values():
            reader.close()
        self._open.clear()
