"""Writing a file of a checkpoint from its first byte to its last: copied to a buffer, summed and written chunk by chunk.

One thread copies the boxes into chunks, in the order in which they lie in the file; another sums a chunk and writes it. The kernel is
told to begin with each chunk at once, so that the disk works from the start and the fsync at the end finds little left to do.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from mmap import mmap
from pathlib import Path

import numpy as np
import xxhash

from slurmtrain.checkpoint.layout import FileLayout
from slurmtrain.store.manifest import CHUNK_BYTES, FileSum
from slurmtrain.syscalls import Syscalls, pwrite_all

BUFFERS = 3
AHEAD = 16
"""Chunks that may wait to be written: whoever makes boxes one by one is held up rather than the memory filled."""

Fetch = Callable[[int], np.ndarray]
"""The content of box number i of a layout: of the box's shape, any strides, elements in the carrier of its type."""
Check = Callable[[int, np.ndarray], None]
"""Sees some elements of box number i: any shape and strides, in the carrier of its type."""
See = Callable[[np.ndarray], None]


def write_file(
    calls: Syscalls,
    path: Path,
    layout: FileLayout,
    fetch: Fetch,
    *,
    look: Callable[[], None] = lambda: None,
    check: Check | None = None,
    buffers: Buffers | None = None,
) -> FileSum:
    """Make a file of this layout; durable when it returns. `fetch` is called once for each box, in the order of the file.

    `look`: called before each chunk; `check`: sees every element on its way, some of them at a time, so that they are read once. Raises
    OSError, and what these three raise; the file is then there in part, for the caller to remove. `buffers`: of whoever writes often.
    """
    sink = _Sink(calls, path, look, buffers or Buffers())
    try:
        for at, what in _order(layout):
            sink.zeros(at - sink.position)
            if isinstance(what, bytes):
                sink.put(np.frombuffer(what, np.uint8))
            else:
                _put_box(sink, fetch(what), layout.stored[what].panel, None if check is None else partial(check, what))
        sink.zeros(layout.size - sink.position)
        return sink.finish()
    finally:
        sink.close()


def _order(layout: FileLayout) -> list[tuple[int, int | bytes]]:
    """(offset, number of a box or bytes of the structure), ascending."""
    boxes: list[tuple[int, int | bytes]] = [(stored.at or 0, i) for i, stored in enumerate(layout.stored)]
    return sorted([*boxes, *layout.structure], key=lambda one: one[0])


def _put_box(sink: _Sink, array: np.ndarray, panel: int, see: See | None) -> None:
    if panel:
        for left in range(0, array.shape[1], panel):
            sink.put_rows(array[:, left : left + panel], see)
        return
    flat = np.ascontiguousarray(array).reshape(-1)
    if see is None or flat.nbytes <= CHUNK_BYTES:
        if see is not None:
            see(array)
        sink.put(flat.view(np.uint8))
        return
    while len(flat):
        piece = flat[: max(1, sink.room // flat.itemsize)]  # up to the end of a chunk
        see(piece)
        sink.put(piece.view(np.uint8))
        flat = flat[len(piece) :]


class Buffers:
    """Memory for chunks, kept from one file to the next: to get it anew from the system takes as long as to copy to it."""

    def __init__(self) -> None:
        self._idle: list[np.ndarray] = []

    def take(self) -> np.ndarray:
        """CHUNK_BYTES of it."""
        while self._idle:
            if len(one := self._idle.pop()) == CHUNK_BYTES:
                return one
        return np.frombuffer(mmap(-1, CHUNK_BYTES), np.uint8)

    def give_back(self, buffers: Sequence[np.ndarray]) -> None:
        """Nobody writes to or reads from these any more."""
        self._idle += buffers[: BUFFERS - len(self._idle)]


class _Sink:
    """Takes the bytes of a file in order; gives full chunks to a thread that sums and writes them."""

    def __init__(self, calls: Syscalls, path: Path, look: Callable[[], None], buffers: Buffers) -> None:
        self._calls, self._look, self._fd = calls, look, calls.create(path)
        self._buffers, self._taken = buffers, list[np.ndarray]()
        self._pool = ThreadPoolExecutor(1)
        self._free: queue.SimpleQueue[np.ndarray] = queue.SimpleQueue()
        self._sums: list[Future[str]] = []
        self._buffer: np.ndarray | None = None
        self._held = 0
        self.position = 0

    def zeros(self, count: int) -> None:
        """A gap."""
        assert count >= 0, count
        while count:
            room = self._room(count)
            room[...] = 0
            count -= len(room)
            self._took(len(room))

    def put(self, data: np.ndarray) -> None:
        """Bytes, one-dimensional; they must not change before `finish`."""
        while len(data):
            if not self._held and len(data) >= CHUNK_BYTES:
                self._send(data[:CHUNK_BYTES], None)
                data = data[CHUNK_BYTES:]
                continue
            room = self._room(len(data))
            room[...] = data[: len(room)]
            data = data[len(room) :]
            self._took(len(room))

    @property
    def room(self) -> int:
        """Bytes to the end of the chunk."""
        return CHUNK_BYTES - self._held

    def put_rows(self, rows: np.ndarray, see: See | None) -> None:
        """Rows of a matrix of which only the columns need be contiguous; `see` is given all of them."""
        width = rows.shape[1] * rows.itemsize
        done = 0
        while done < len(rows):
            count = min((CHUNK_BYTES - self._held) // width, len(rows) - done)
            if not count:  # a row across the end of the chunk
                row = np.ascontiguousarray(rows[done])
                if see is not None:
                    see(row)
                self.put(row.view(np.uint8))
                done += 1
                continue
            room = self._room(count * width).view(rows.dtype)
            room.reshape(count, -1)[...] = rows[done : done + count]
            if see is not None:
                see(room)
            done += count
            self._took(count * width)

    def finish(self) -> FileSum:
        """Write what is left, make all of it durable."""
        if self._held:
            assert self._buffer is not None
            self._send(self._buffer[: self._held], self._buffer)
        sums = tuple(one.result() for one in self._sums)
        self._calls.fsync(self._fd)
        return FileSum(self.position, sums)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._buffers.give_back(self._taken)
        self._calls.close(self._fd)

    def _room(self, count: int) -> np.ndarray:
        """Some of the room that is left in the chunk, at most `count` bytes."""
        if self._buffer is None:
            self._buffer = self._fresh()
        return self._buffer[self._held : min(self._held + count, CHUNK_BYTES)]

    def _took(self, count: int) -> None:
        self._held += count
        self.position += count
        if self._held == CHUNK_BYTES:
            assert self._buffer is not None
            self.position -= CHUNK_BYTES
            self._send(self._buffer, self._buffer)

    def _fresh(self) -> np.ndarray:
        if len(self._taken) < BUFFERS:
            self._taken.append(self._buffers.take())
            return self._taken[-1]
        while True:
            try:
                return self._free.get(timeout=1.0)
            except queue.Empty:
                self._raise_failed()

    def _raise_failed(self) -> None:
        for one in self._sums:
            if one.done():
                one.result()

    def _send(self, chunk: np.ndarray, buffer: np.ndarray | None) -> None:
        """Hand a chunk over; `buffer`: what it lies in and is free again afterwards."""
        self._look()
        at = len(self._sums) * CHUNK_BYTES
        self._sums.append(self._pool.submit(self._write, chunk, at, buffer))
        if len(self._sums) > AHEAD:
            self._sums[-1 - AHEAD].result()
        self.position = at + len(chunk)
        if buffer is not None:
            self._buffer, self._held = None, 0

    def _write(self, chunk: np.ndarray, at: int, buffer: np.ndarray | None) -> str:
        data = chunk.data
        digits = xxhash.xxh3_64_hexdigest(data)
        pwrite_all(self._calls, self._fd, data, at)
        self._calls.settle(self._fd, at, len(chunk))
        if buffer is not None:
            self._free.put(buffer)
        return digits
