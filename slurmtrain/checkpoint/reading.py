"""Reading a file of a checkpoint: by chunks, each compared with its sum, the bytes going straight to where they belong.

Bytes are read, summed and moved in blocks that stay in a processor's cache between the three. HDF5 takes no part in it: where
elements lie is in the manifest.
"""

from __future__ import annotations

import errno
import os
import stat
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from slurmtrain.errors import CorruptCheckpointError, UnreadableCheckpointError
from slurmtrain.store.manifest import CHUNK_BYTES, FileSum
from slurmtrain.store.verify import SAMPLED_EVERY, Policy

BLOCK_BYTES = 1 << 20
DIRECT_BYTES = 64 << 10
"""Runs of bytes from this length on are read into their target without a stop on the way."""
MOST_BUFFERS = 512
"""Targets of one read; the system's own bound is 1024."""
MISSING = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
"""What the system says of a file that is not there; anything else says nothing about its bytes."""
LONG_GAP = 256 << 10
"""Bytes that nobody wants are read and dropped up to this length: a second read would cost more."""


class Strip(NamedTuple):
    """Elements wanted of one stretch of a file, `first` to `last` (exclusive).

    `memory`: where its bytes go, all of them in their order. None: element [i, j, ..] of `target`, of one dim at least, lies at
    `first` + i * strides[0] + j * strides[1] + ..; the last stride is the width of an element.
    """

    first: int
    last: int
    memory: memoryview | None
    target: np.ndarray | None = None
    strides: tuple[int, ...] = ()


def strips_of(first: int, strides: tuple[int, ...], target: np.ndarray) -> Iterator[Strip]:
    """The strips that fill `target` (one dim at least, not empty) from elements that lie at `first` + sum of index * stride.

    Where more than LONG_GAP lies between two rows, each row is a strip.
    """
    span = target.itemsize + sum((n - 1) * stride for n, stride in zip(target.shape[1:], strides[1:], strict=True))
    if len(target) > 1 and strides[0] - span > LONG_GAP:
        for i, row in enumerate(target):
            yield from strips_of(first + i * strides[0], strides[1:], row)
        return
    last = first + (len(target) - 1) * strides[0] + span
    if last - first == target.nbytes and target.flags.c_contiguous:
        yield Strip(first, last, target.data.cast("B"))
    else:
        yield Strip(first, last, None, target, strides)


class _Segment(NamedTuple):
    """Bytes to read, `start` to `stop`: into these memories, which together are so long; or to be copied to the strips `inside`."""

    start: int
    stop: int
    memories: Sequence[memoryview]
    inside: Sequence[Strip]


class FileReader:
    """One file. Errors name it: CorruptCheckpointError (missing, other size, other bytes), UnreadableCheckpointError (the system refuses).

    Its methods may be called from several threads.
    """

    def __init__(self, path: Path, sums: FileSum, chunk_bytes: int = CHUNK_BYTES, policy: Policy = "full") -> None:
        self.path, self.size = path, sums.size
        self._sums, self._chunk_bytes, self._policy = sums.xxh3_64, chunk_bytes, policy
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe of this name would be waited for
        except OSError as error:
            raise self._trouble(error) from error
        try:
            self._check_size()
        except BaseException:
            self.close()
            raise

    def range_of(self, chunk: int) -> tuple[int, int]:
        """First byte of a chunk and the one behind its last."""
        low = chunk * self._chunk_bytes
        return low, min(low + self._chunk_bytes, self.size)

    def compared(self, chunk: int) -> bool:
        """Whether the policy wants this chunk compared with its sum."""
        if self._policy == "sampled":
            return chunk % SAMPLED_EVERY == 0 or chunk == len(self._sums) - 1
        return self._policy == "full"

    def expect(self, chunk: int, strips: Sequence[Strip]) -> None:
        """Let the kernel begin to fetch what `read` will want; a hint that never fails."""
        low, high = self.range_of(chunk)
        if not self.compared(chunk):
            low, high = max(low, strips[0].first), min(high, max(one.last for one in strips))
        try:
            os.posix_fadvise(self._fd, low, high - low, os.POSIX_FADV_WILLNEED)
        except OSError:
            return

    def read(self, chunk: int, strips: Sequence[Strip], scratch: np.ndarray) -> None:
        """Fill what the strips, sorted by `first`, want of a chunk; `scratch`: BLOCK_BYTES of memory.

        A chunk that is compared is read whole, and its bytes are in the targets before the comparison.
        """
        low, high = self.range_of(chunk)
        digest = xxhash.xxh3_64() if self.compared(chunk) else None
        for start, stop, memories, inside in _segments(strips, low, high, whole=digest is not None):
            if memories:
                self._direct(start, memories, digest)
            else:
                self._scattered(start, stop, inside, scratch, digest)
        if digest is not None:
            self._compare(chunk, digest)

    def whole(self, chunk: int) -> np.ndarray:
        """All bytes of a chunk, compared with its sum where the policy wants it."""
        low, high = self.range_of(chunk)
        data = np.empty(high - low, np.uint8)
        self._pread(data.data, low)
        if self.compared(chunk):
            self._compare(chunk, xxhash.xxh3_64(data.data))
        return data

    def close(self) -> None:
        os.close(self._fd)

    def _check_size(self) -> None:
        try:
            found = os.fstat(self._fd)
        except OSError as error:
            raise self._trouble(error) from error
        if not stat.S_ISREG(found.st_mode):
            raise CorruptCheckpointError(f"{self.path}: not a regular file")
        if found.st_size != self.size:
            raise CorruptCheckpointError(f"{self.path}: {found.st_size} bytes, {self.size} were written")
        if len(self._sums) != -(-self.size // self._chunk_bytes):
            raise CorruptCheckpointError(f"{self.path}: {len(self._sums)} sums in the manifest for {self.size} bytes")

    def _direct(self, at: int, memories: Sequence[memoryview], digest: Any) -> None:
        """Read bytes from `at` on into these memories, one after another."""
        batch, size = list[memoryview](), 0
        for memory in memories:
            for low in range(0, len(memory), BLOCK_BYTES):
                piece = memory[low : low + BLOCK_BYTES] if len(memory) > BLOCK_BYTES else memory
                batch.append(piece)
                size += len(piece)
                if size >= BLOCK_BYTES or len(batch) >= MOST_BUFFERS:
                    at = self._batch(at, batch, size, digest)
                    batch, size = [], 0
        if batch:
            self._batch(at, batch, size, digest)

    def _batch(self, at: int, batch: Sequence[memoryview], size: int, digest: Any) -> int:
        """Read and sum; where the bytes end."""
        count = self._preadv(batch, at)
        if count < size:
            self._rest(batch, at, count)
        if digest is not None:
            for piece in batch:
                digest.update(piece)
        return at + size

    def _scattered(self, start: int, stop: int, inside: Sequence[Strip], scratch: np.ndarray, digest: Any) -> None:
        """Read a stretch to `scratch`, block by block, and copy from there."""
        coming, crossing = 0, list[Strip]()
        for low in range(start, stop, BLOCK_BYTES):
            high = min(low + BLOCK_BYTES, stop)
            piece = scratch[: high - low]
            self._pread(piece.data, low)
            if digest is not None:
                digest.update(piece.data)
            after = bisect_left(inside, high, coming, key=_FIRST)
            crossing = deliver([*crossing, *inside[coming:after]], piece, low)
            coming = after

    def _pread(self, target: memoryview, at: int) -> None:
        count = self._preadv([target], at)
        if count < len(target):
            self._rest([target], at, count)

    def _rest(self, targets: Sequence[memoryview], at: int, done: int) -> None:
        """Read on, when the system has given less than it was asked for."""
        for target in targets:
            while done < len(target):
                count = self._preadv([target[done:]], at + done)
                if not count:
                    raise CorruptCheckpointError(f"{self.path}: ends at byte {at + done}, {self.size} were written")
                done += count
            at, done = at + len(target), done - len(target)

    def _preadv(self, targets: Sequence[memoryview], at: int) -> int:
        try:
            return os.preadv(self._fd, targets, at)
        except OSError as error:
            raise self._trouble(error) from error

    def _compare(self, chunk: int, digest: Any) -> None:
        if digest.hexdigest() != self._sums[chunk]:
            low, high = self.range_of(chunk)
            raise CorruptCheckpointError(f"{self.path}: chunk {chunk} (bytes {low} to {high}) differs from what was written")

    def _trouble(self, error: OSError) -> CorruptCheckpointError:
        kind = CorruptCheckpointError if error.errno in MISSING else UnreadableCheckpointError
        return kind(f"{self.path}: {os.strerror(error.errno or 0)}")


_FIRST = itemgetter(0)


def deliver(strips: Sequence[Strip], block: np.ndarray, low: int) -> list[Strip]:
    """Copy to the strips what a block of bytes, which begins at `low` of the file, holds of them; those that go on behind it."""
    data, high, unfinished = block.data, low + len(block), []
    for strip in strips:
        first, last, memory, target, strides = strip
        if memory is None:
            assert target is not None
            _deliver_grid(first, strides, target, block, low)
        elif first >= low and last <= high:
            memory[:] = data[first - low : last - low]
            continue
        else:
            start, stop = max(first, low), min(last, high)
            if start < stop:
                memory[start - first : stop - first] = data[start - low : stop - low]
        if last > high:
            unfinished.append(strip)
    return unfinished


def _deliver_grid(first: int, strides: tuple[int, ...], target: np.ndarray, block: np.ndarray, low: int) -> None:
    """Copy the elements, and parts of elements, that lie in the block: whole rows (along the first dim) at once, cut ones dim by dim."""
    high, stride, count = low + len(block), strides[0], len(target)
    span = target.itemsize + sum((n - 1) * s for n, s in zip(target.shape[1:], strides[1:], strict=True))
    begin = max(0, (low - first - span) // stride + 1)  # rows that share a byte with the block
    end = min(count, -((first - high) // stride))
    whole_begin = max(begin, -((first - low) // stride))  # rows that lie in it
    whole_end = min(end, (high - first - span) // stride + 1)
    if whole_end > whole_begin:
        shape = (whole_end - whole_begin, *target.shape[1:])
        target[whole_begin:whole_end] = np.ndarray(shape, target.dtype, block, first + whole_begin * stride - low, strides)
    else:
        whole_begin = whole_end = end
    for row in (*range(begin, whole_begin), *range(whole_end, end)):
        at = first + row * stride
        if target.ndim > 1:
            _deliver_grid(at, strides[1:], target[row], block, low)
        else:
            start, stop = max(at, low), min(at + span, high)
            target[row : row + 1].view(np.uint8)[start - at : stop - at] = block[start - low : stop - low]


def _segments(strips: Sequence[Strip], low: int, high: int, *, whole: bool) -> Iterator[_Segment]:
    """What to read of a range, ascending. `whole`: all of it; else what nobody wants is left out where it is longer than LONG_GAP."""
    start = reach = low
    inside: list[Strip] = []
    i, count = 0, len(strips)
    while i < count:
        first, after = max(strips[i].first, low), max(i + 1, _run_end(strips, i))
        last = min(strips[after - 1].last, high)
        alone = strips[i].memory is not None and first >= reach and (after == count or strips[after].first >= last)
        if alone and last - first >= DIRECT_BYTES:
            if inside or (whole and first > start):
                yield _Segment(start, first if whole else reach, (), inside)
            yield _Segment(first, last, _memories(strips[i:after], low, high), ())
            start, reach, inside = last, last, []
        else:
            if not whole and (not inside or first - reach > LONG_GAP):
                if inside:
                    yield _Segment(start, reach, (), inside)
                start, inside = first, []
            inside += strips[i:after]
            reach = max(reach, *(min(strip.last, high) for strip in strips[i:after]))
        i = after
    if inside or (whole and start < high):
        yield _Segment(start, high if whole else reach, (), inside)


def _run_end(strips: Sequence[Strip], i: int) -> int:
    """The number behind the last of the strips from i on that have memory and follow one another without a gap; i where it has none."""
    end = -1
    for number in range(i, len(strips)):
        first, last, memory, _, _ = strips[number]
        if memory is None or (first != end and end >= 0):
            return number
        end = last
    return len(strips)


def _memories(strips: Sequence[Strip], low: int, high: int) -> list[memoryview]:
    """Those of strips that follow one another, as far as they are in a range: only the first and the last may reach out of it."""
    found: list[Any] = [strip[2] for strip in strips]
    if (over := strips[-1].last - high) > 0:
        found[-1] = found[-1][:-over]
    if (under := low - strips[0].first) > 0:
        found[0] = found[0][under:]
    return found
