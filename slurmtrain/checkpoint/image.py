"""The image of a rank's state in memory that it shares with a writer, and with ranks that share the writer: box after box, as they are.

Copying to it is all that training waits for, so nothing is rearranged here: panels and HDF5's own bytes are the writer's business.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from slurmtrain.checkpoint.dtypes import carrier
from slurmtrain.checkpoint.layout import BoxSpec
from slurmtrain.checkpoint.saver import Register, Source

ALIGNMENT = 64


def spots(specs: Iterable[BoxSpec]) -> tuple[list[int], int]:
    """The byte of an image at which each box begins, and the image's size.

    >>> from slurmtrain.boxes import whole
    >>> spots([BoxSpec("a", (3,), whole((3,)), "float32"), BoxSpec("b", (20,), whole((20,)), "float32")])
    ([0, 64], 192)
    """
    starts, end = [], 0
    for spec in specs:
        starts.append(end)
        end += -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
    return starts, max(end, ALIGNMENT)


class View:
    """An image, or the same one in another process. Raises OSError."""

    def __init__(self, fd: int, size: int, *, writable: bool = True) -> None:
        how = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if writable else 0)
        self._map = mmap.mmap(fd, size, flags, how)
        self._memory = np.frombuffer(self._map, np.uint8)
        self._release: Callable[[], None] | None = None

    @classmethod
    def of(cls, path: Path, size: int) -> View:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(fd, size)
        finally:
            os.close(fd)

    def arrays(self, specs: Sequence[BoxSpec], starts: Sequence[int]) -> list[np.ndarray]:
        """The memory of boxes that begin at these bytes: of their shapes, in the carriers of their types."""
        return [
            self._memory[start : start + spec.nbytes].view(carrier(spec.dtype)).reshape(spec.box.shape)
            for spec, start in zip(specs, starts, strict=True)
        ]

    def register(self, register: Register) -> None:
        """Tell a device of this memory."""
        self._release = register(self._memory)

    def close(self) -> None:
        """Give the memory back once nothing refers to it any more."""
        if self._release is not None:
            self._release()
            self._release = None
        self._memory = np.empty(0, np.uint8)
        with suppress(BufferError):  # a view of it is still held somewhere: it goes with the last of them
            self._map.close()


class Image(View):
    """Memory for boxes, all of it there from the start. Raises OSError where memory lacks.

    `path`: under which other processes of this user, on this node, open it while this one lives.
    """

    def __init__(self, size: int) -> None:
        self.fd, self.size = os.memfd_create("slurmtrain-checkpoint", os.MFD_CLOEXEC), size
        try:
            os.posix_fallocate(self.fd, 0, size)
            super().__init__(self.fd, size)
        except BaseException:
            os.close(self.fd)
            raise
        self.path = Path(f"/proc/{os.getpid()}/fd/{self.fd}")

    def close(self) -> None:
        super().close()
        os.close(self.fd)


def fill(source: Source, arrays: Sequence[np.ndarray]) -> None:
    """Copy all boxes of a source to their places; raises what the source raises."""
    for index, array in enumerate(arrays):
        source.copy_to(index, array)
    source.settle()
