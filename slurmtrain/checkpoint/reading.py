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

    def expect(self, low: int, high: int) -> None:
        """Let the kernel begin to fetch these bytes; a hint that never fails."""
        try:
            os.posix_fadvise(self._fd, low, high - low, os.POSIX_FADV_WILLNEED)
        except OSError:
            return

    def read(self, chunk: int, strips: Sequence[Strip], scratch: np.ndarray) -> None:
        """Fill what the strips, sorted by `first`, want of a chunk; `scratch`: BLOCK_BYTES of memory.

        A chunk that is compared is read whole, and its bytes are in the targets before the comparison.
        """
        low, high = self.range_of(chunk)
        if not self.compared(chunk):
            for start, stop, inside in _segments(strips, low, high, whole=False):
                self._segment(start, stop, inside, scratch, None)
            return
        digest = xxhash.xxh3_64()
        for start, stop, inside in _segments(strips, low, high, whole=True):
            self._segment(start, stop, inside, scratch, digest)
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

    def _segment(self, start: int, stop: int, inside: memoryview | Sequence[Strip], scratch: np.ndarray, digest: Any) -> None:
        if isinstance(inside, memoryview):
            for at in range(0, len(inside), BLOCK_BYTES):
                block = inside[at : at + BLOCK_BYTES]
                self._pread(block, start + at)
                if digest is not None:
                    digest.update(block)
            return
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
        try:
            while len(target):
                count = os.preadv(self._fd, [target], at)
                if not count:
                    raise CorruptCheckpointError(f"{self.path}: ends at byte {at}, {self.size} were written")
                target, at = target[count:], at + count
        except OSError as error:
            raise self._trouble(error) from error

    def _compare(self, chunk: int, digest: Any) -> None:
        if digest.hexdigest() != self._sums[chunk]:
            low, high = self.range_of(chunk)
            raise CorruptCheckpointError(f"{self.path}: chunk {chunk} (bytes {low} to {high}) differs from what was written")

    def _trouble(self, error: OSError) -> CorruptCheckpointError:
        kind = CorruptCheckpointError if error.errno in _MISSING else UnreadableCheckpointError
        return kind(f"{self.path}: {os.strerror(error.errno or 0)}")


_FIRST = itemgetter(0)
_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


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


def _segments(strips: Sequence[Strip], low: int, high: int, *, whole: bool) -> Iterator[tuple[int, int, memoryview | list[Strip]]]:
    """Stretches of a range to read, ascending: (start, stop, the memory that takes all of it, or the strips that lie in it).

    `whole`: they cover the range without a gap; else what nobody wants is left out where it is longer than LONG_GAP.
    """
    start = reach = low
    inside: list[Strip] = []
    for i, strip in enumerate(strips):
        first, last = max(strip.first, low), min(strip.last, high)
        alone = last - first >= DIRECT_BYTES and first >= reach and (i + 1 == len(strips) or strips[i + 1].first >= last)
        if alone and strip.memory is not None:
            if inside or (whole and first > start):
                yield start, first if whole else reach, inside
            yield first, last, strip.memory[first - strip.first : last - strip.first]
            start, reach, inside = last, last, []
            continue
        if not whole and (not inside or first - reach > LONG_GAP):
            if inside:
                yield start, reach, inside
            start, inside = first, []
        inside.append(strip)
        reach = max(reach, last)
    if inside or (whole and start < high):
        yield start, high if whole else reach, inside
