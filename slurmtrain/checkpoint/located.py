"""Checkpoints of format 1 as if they were of format 2: their manifests name datasets, and HDF5 knows at which byte these lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import h5py

from slurmtrain.checkpoint.dtypes import carrier
from slurmtrain.checkpoint.h5types import hdf5_type
from slurmtrain.errors import CorruptCheckpointError
from slurmtrain.store.manifest import Manifest, StoredBox, TensorEntry, Tensors
from slurmtrain.store.verify import sum_problems


def located(folder: Path, manifest: Manifest) -> Manifest:
    """The manifest with `at` of every box; one of format 2 as it is.

    A file is looked into when a tensor in it is first asked for, after all its bytes have been compared with their sums: HDF5 may
    crash on others. Raises CorruptCheckpointError then.
    """
    tensors = manifest.tensors
    if isinstance(tensors, Located) or (isinstance(tensors, Tensors) and tensors.version > 1):
        return manifest
    return replace(manifest, tensors=Located(folder, manifest))


class Located(Mapping[str, TensorEntry]):
    """An index whose boxes get their `at` when they are asked for; those that have it are left as they are."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder, self._manifest = folder, manifest
        self._places: dict[str, dict[str, tuple[int, int, h5py.h5t.TypeID]]] = {}

    def __getitem__(self, name: str) -> TensorEntry:
        entry = self._manifest.tensors[name]
        return replace(entry, boxes=tuple(self._located(name, entry.dtype, one) for one in entry.boxes))

    def __iter__(self) -> Iterator[str]:
        return iter(self._manifest.tensors)

    def __len__(self) -> int:
        return len(self._manifest.tensors)

    def _located(self, name: str, dtype: str, one: StoredBox) -> StoredBox:
        if one.at is not None:
            return one
        if one.file not in self._places:
            self._places[one.file] = self._look_into(one.file)
        where = f"{name}: {self._folder / one.file}: dataset {one.dataset}"
        if one.dataset not in self._places[one.file]:
            raise CorruptCheckpointError(f"{where}: not there, or not contiguous")
        at, elements, kind = self._places[one.file][one.dataset]
        start = one.start or 0
        if not kind.equal(hdf5_type(dtype)):
            raise CorruptCheckpointError(f"{where}: its elements are not {dtype}")
        if start + one.box.volume > elements:
            raise CorruptCheckpointError(f"{where}: {elements} elements, the index says {start + one.box.volume} or more")
        return replace(one, at=at + start * carrier(dtype).itemsize)

    def _look_into(self, file: str) -> dict[str, tuple[int, int, h5py.h5t.TypeID]]:
        """First byte, number of elements and their type of each contiguous dataset."""
        if problems := sum_problems(self._folder, self._manifest, [file]):
            raise CorruptCheckpointError(f"{self._folder}: {problems[0]}")
        path, found = self._folder / file, {}
        try:
            with h5py.File(path, "r", locking=False) as opened:
                for name, one in opened.items():
                    if isinstance(one, h5py.Dataset) and one.chunks is None and (at := one.id.get_offset()) is not None:
                        found[name] = (at, one.size, one.id.get_type())
        except (OSError, RuntimeError, KeyError, ValueError) as error:
            raise CorruptCheckpointError(f"{path}: cannot be opened as HDF5: {str(error).splitlines()[0]}") from error
        return found
