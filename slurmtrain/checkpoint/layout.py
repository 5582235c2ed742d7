"""Boxes that are to be stored, and where each lies in its file; made by `skeleton`, read by all who write. No h5py."""

from __future__ import annotations

from dataclasses import dataclass

from slurmtrain.boxes import Box
from slurmtrain.checkpoint.dtypes import carrier
from slurmtrain.store.manifest import StoredBox


@dataclass(frozen=True)
class BoxSpec:
    """A box to be stored: a part, not empty, of the global tensor `name`."""

    name: str
    global_shape: tuple[int, ...]
    box: Box
    dtype: str

    @property
    def nbytes(self) -> int:
        return self.box.volume * carrier(self.dtype).itemsize


@dataclass(frozen=True)
class FileLayout:
    """A file to be: its name and size, HDF5's own bytes as (offset, bytes), ascending, and where each box lies, in the order given.

    What neither covers is a gap of zeros.
    """

    file: str
    size: int
    structure: tuple[tuple[int, bytes], ...]
    specs: tuple[BoxSpec, ...]
    stored: tuple[StoredBox, ...]
