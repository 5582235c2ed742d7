"""Files straight from one rank to another: block by block, each compared with its sum on both ends, while the next is on its way.

A rank that fails to read goes on sending, and one that fails to write goes on receiving: nobody is left waiting, and both say so at the
end. Memory: two blocks for what a rank sends, two for what it receives.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xxhash

from slurmtrain.checkpoint.group import Group, reason_of
from slurmtrain.store.manifest import CHUNK_BYTES, FileSum
from slurmtrain.syscalls import SYSTEM, Syscalls, pwrite_all

Wait = Callable[[], None]


class PeerGroup(Group, Protocol):
    """A group whose ranks may also speak to one another, two at a time; what one sends to another arrives in that order."""

    def send(self, data: np.ndarray, to: int) -> Wait:
        """Begin to send bytes; the result waits until the memory may change again."""

    def receive(self, into: np.ndarray, source: int) -> Wait:
        """Begin to receive as many bytes as there is room for; the result waits until they are there."""

    def close(self) -> None:
        """Leave the group: what others await of this rank fails soon."""


@dataclass(frozen=True)
class Out:
    """A file that this rank sends. `sums`: of `chunk_bytes` each."""

    path: Path
    sums: FileSum
    to: int


@dataclass(frozen=True)
class Into:
    """A file that this rank receives; `path` must not be there yet."""

    path: Path
    sums: FileSum
    source: int


@dataclass(frozen=True)
class Exchanged:
    """One line for each end that failed, empty where it did not. A file that was received is durable, its name is not yet."""

    sent: str = ""
    received: str = ""


def exchange(
    group: PeerGroup, out: Out | None, into: Into | None, *, chunk_bytes: int = CHUNK_BYTES, calls: Syscalls = SYSTEM
) -> Exchanged:
    """Send a file and receive another at the same time; the ranks at the other ends call this, too. Raises what the group raises."""
    source, sink = _Source(out, chunk_bytes), _Sink(into, chunk_bytes, calls)
    try:
        for i in range(max(source.count, sink.count) + 1):
            waits: list[Wait] = []
            if i < source.count:
                assert out is not None
                waits.append(group.send(source.block(i), out.to))
            if i < sink.count:
                assert into is not None
                waits.append(group.receive(sink.room(i), into.source))
            if 0 < i <= sink.count:
                sink.take(i - 1)
            if i + 1 < source.count:
                source.read(i + 1)
            for wait in waits:
                wait()
        sink.finish()
    finally:
        source.close()
        sink.close()
    return Exchanged(source.error, sink.error)


def send_value(group: PeerGroup, value: Any, to: int) -> Wait:
    """Begin to send a small value."""
    data = np.frombuffer(pickle.dumps(value), np.uint8).copy()
    size = np.array([len(data)], np.int64).view(np.uint8)
    waits = [group.send(size, to), group.send(data, to)]

    def wait() -> None:
        for one in waits:
            one()

    return wait


def receive_value(group: PeerGroup, source: int) -> Any:
    """A value that the other rank sends by `send_value`."""
    size = np.empty(1, np.int64)
    group.receive(size.view(np.uint8), source)()
    data = np.empty(int(size[0]), np.uint8)
    group.receive(data, source)()
    return pickle.loads(data.data)  # noqa: S301 of a rank of this world


class _Source:
    """The blocks of a file that is sent; what cannot be read is sent as it lies in memory, and `error` says so."""

    def __init__(self, out: Out | None, chunk_bytes: int) -> None:
        self.error = ""
        self._out, self._chunk_bytes, self._fd = out, chunk_bytes, -1
        self.count = 0 if out is None else len(out.sums.xxh3_64)
        size = 0 if out is None else min(chunk_bytes, out.sums.size)
        self._buffers = [np.zeros(size, np.uint8) for _ in range(min(2, self.count))]
        if self.count:
            assert out is not None
            try:
                self._fd = os.open(out.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                self._failed(error)
            self.read(0)

    def block(self, i: int) -> np.ndarray:
        assert self._out is not None
        return self._buffers[i % 2][: self._out.sums.size - i * self._chunk_bytes]

    def read(self, i: int) -> None:
        if self.error:
            return
        assert self._out is not None
        block, at = self.block(i).data, i * self._chunk_bytes
        try:
            while block:
                count = os.preadv(self._fd, [block], at)
                if not count:
                    self.error = f"{self._out.path}: ends at byte {at}, {self._out.sums.size} were written"
                    return
                block, at = block[count:], at + count
        except OSError as error:
            self._failed(error)
            return
        if xxhash.xxh3_64_hexdigest(self.block(i).data) != self._out.sums.xxh3_64[i]:
            self.error = f"{self._out.path}: chunk {i} differs from what was written"

    def _failed(self, error: OSError) -> None:
        assert self._out is not None
        self.error = f"{self._out.path}: {error.strerror or reason_of(error)}"

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


class _Sink:
    """Takes the blocks of a file that is received."""

    def __init__(self, into: Into | None, chunk_bytes: int, calls: Syscalls) -> None:
        self.error = ""
        self._into, self._chunk_bytes, self._calls, self._fd = into, chunk_bytes, calls, -1
        self.count = 0 if into is None else len(into.sums.xxh3_64)
        size = 0 if into is None else min(chunk_bytes, into.sums.size)
        self._buffers = [np.empty(size, np.uint8) for _ in range(min(2, self.count))]
        self._durable = False
        if into is not None:
            try:
                self._fd = calls.create(into.path)
            except OSError as error:
                self._failed(error)

    def room(self, i: int) -> np.ndarray:
        assert self._into is not None
        return self._buffers[i % 2][: self._into.sums.size - i * self._chunk_bytes]

    def take(self, i: int) -> None:
        """Block `i` is there."""
        if self.error:
            return
        assert self._into is not None
        block = self.room(i)
        if xxhash.xxh3_64_hexdigest(block.data) != self._into.sums.xxh3_64[i]:
            self.error = f"{self._into.path}: chunk {i} came from rank {self._into.source} otherwise than it was written"
            return
        try:
            pwrite_all(self._calls, self._fd, block.data, i * self._chunk_bytes)
            self._calls.settle(self._fd, i * self._chunk_bytes, len(block))
        except OSError as error:
            self._failed(error)

    def finish(self) -> None:
        if self._into is None or self.error:
            return
        try:
            self._calls.fsync(self._fd)
            self._durable = True
        except OSError as error:
            self._failed(error)

    def close(self) -> None:
        """Close the file; one that is not whole goes."""
        if self._into is None or self._fd < 0:
            return
        self._calls.close(self._fd)
        if not self._durable:
            with suppress(OSError):
                self._calls.unlink(self._into.path)

    def _failed(self, error: OSError) -> None:
        assert self._into is not None
        self.error = f"{self._into.path}: {error.strerror or reason_of(error)}"
