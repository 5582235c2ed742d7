"""The image of a file in memory that ranks of a node and a writer share: every byte at its place, filled by copies, written as it is."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from slurmtrain.checkpoint.dtypes import carrier
from slurmtrain.checkpoint.layout import BoxSpec, FileLayout
from slurmtrain.checkpoint.saver import Register, Source
from slurmtrain.checkpoint.writing import fill_structure
from slurmtrain.store.manifest import StoredBox

Place = tuple[np.ndarray, int]
"""The elements that hold a box, one-dimensional, and its panels."""


class Image:
    """Memory of the size of a layout, all of it there from the start, with HDF5's bytes in their places and zeros elsewhere.

    `path`: under which other processes of this user, on this node, open it while this one lives. Raises OSError where memory lacks.
    """

    def __init__(self, layout: FileLayout) -> None:
        self.fd = os.memfd_create("slurmtrain-checkpoint", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(self.fd, 0, layout.size)
            self._view = View(self.fd, layout.size)
        except BaseException:
            os.close(self.fd)
            raise
        self.memory = self._view.memory
        self.path = Path(f"/proc/{os.getpid()}/fd/{self.fd}")
        fill_structure(layout, self.memory)

    def places(self, specs: Sequence[BoxSpec], stored: Sequence[StoredBox]) -> list[Place]:
        return self._view.places(specs, stored)

    def register(self, register: Register) -> None:
        self._view.register(register)

    def close(self) -> None:
        self._view.close()
        os.close(self.fd)


class View:
    """An image that another process made, or this one. Raises OSError."""

    def __init__(self, fd: int, size: int, *, writable: bool = True) -> None:
        how = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if writable else 0)
        self._map = mmap.mmap(fd, size, flags, how)
        self.memory = np.frombuffer(self._map, np.uint8)
        self._release: Callable[[], None] | None = None

    @classmethod
    def of(cls, path: Path, size: int) -> View:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(fd, size)
        finally:
            os.close(fd)

    def places(self, specs: Sequence[BoxSpec], stored: Sequence[StoredBox]) -> list[Place]:
        """Where each box lies."""
        return [(place_of(self.memory, spec, one), one.panel) for spec, one in zip(specs, stored, strict=True)]

    def register(self, register: Register) -> None:
        """Tell a device of this memory."""
        self._release = register(self.memory)

    def close(self) -> None:
        """Give the memory back once nothing refers to it any more."""
        if self._release is not None:
            self._release()
            self._release = None
        self.memory = np.empty(0, np.uint8)
        with suppress(BufferError):  # a view of it is still held somewhere: it goes with the last of them
            self._map.close()


def place_of(memory: np.ndarray, spec: BoxSpec, stored: StoredBox) -> np.ndarray:
    """The elements of a box in an image, one-dimensional."""
    assert stored.at is not None, stored
    return memory[stored.at : stored.at + spec.nbytes].view(carrier(spec.dtype))


def fill(source: Source, places: Sequence[Place]) -> None:
    """Copy all boxes of a source to their places; what the source raises."""
    for index, (place, panel) in enumerate(places):
        source.copy_to(index, place, panel)
    source.settle()
