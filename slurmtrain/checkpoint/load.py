"""Loading, on numpy arrays: parts of tensors wanted are cut with boxes stored, and filled in the order in which their bytes lie.

Some threads take chunks of files one after another: while one waits for the disk, another sums and moves what it has. They hold no
memory but a block each; what is wanted goes straight to its target.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from operator import itemgetter
from pathlib import Path
from threading import Event, Lock, Thread
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np

from slurmtrain.boxes import Box, Part, contains, intersect, tiling_fault, whole
from slurmtrain.checkpoint.dtypes import carrier
from slurmtrain.checkpoint.located import located
from slurmtrain.checkpoint.reading import BLOCK_BYTES, FileReader, Strip, deliver, strips_of
from slurmtrain.errors import CheckpointError, CorruptCheckpointError
from slurmtrain.store.manifest import MANIFEST_NAME, Manifest, StoredBox, Tensors, uncollected
from slurmtrain.store.verify import Policy

OPEN_FILES = 64
THREADS = 2
"""Enough to read and sum at once; the ranks of a node have its cores together."""
AHEAD = 3
"""Chunks that the kernel is told of before they are read."""
KEPT_CHUNKS = 2
NAMES_SHOWN = 3


class Wish(NamedTuple):
    """A part of a tensor that is wanted: `target` has the shape of the part's box, any strides, and the carrier type of `dtype`."""

    part: Part
    dtype: str
    target: np.ndarray


class _Task(NamedTuple):
    """A chunk of a file, and what is wanted of it."""

    file: str
    chunk: int
    strips: list[Strip]


class PartReader:
    """Fills arrays with parts of global tensors from a checkpoint.

    `turn`: (number, count) of those that read the same checkpoint at the same time: each begins elsewhere. Errors name tensor and file:
    CheckpointError (no such tensor; another shape or type), CorruptCheckpointError (not what was written, or not to be read: then
    targets may have been changed).
    """

    def __init__(self, folder: Path, manifest: Manifest, policy: Policy = "full", turn: tuple[int, int] = (0, 1)) -> None:
        self.folder, self.manifest = folder, located(folder, manifest)
        self._policy, self._turn = policy, turn
        self._open: dict[str, FileReader] = {}
        self._users: dict[str, int] = {}
        self._lock = Lock()
        self._kept: dict[tuple[str, int], np.ndarray] = {}

    def fill(self, part: Part, dtype: str, target: np.ndarray) -> None:
        """Fill one array. Of chunks that hold more than is wanted the last few are kept: small tensors may come one by one."""
        tasks = self._tasks([Wish(part, dtype, target)])
        if not tasks or target.nbytes > self.manifest.chunk_bytes // 2 or self._policy == "sizes":
            self._run(tasks)
            return
        for task in tasks:
            with self._naming(task):
                low, _ = self._reader(task.file).range_of(task.chunk)
                deliver(task.strips, self._chunk(task.file, task.chunk), low)

    def fill_all(self, wishes: Iterable[Wish]) -> None:
        """Fill many arrays, reading each chunk once. Wishes may ask for the same bytes."""
        self._run(self._tasks(wishes))

    def close(self) -> None:
        for reader in self._open.values():
            reader.close()
        self._open.clear()
        self._kept.clear()

    def _tasks(self, wishes: Iterable[Wish]) -> list[_Task]:
        """What is to be read for the wishes, in the order of the files and their chunks."""
        found: dict[str, list[Strip]] = {name: [] for name in self.manifest.files}
        with uncollected():
            for wish in self._without_simple(wishes, found):
                for file, strip in self._strips(*wish):
                    found[file].append(strip)
        return [_Task(file, chunk, strips) for file, all_ in found.items() for chunk, strips in _by_chunk(all_, self.manifest.chunk_bytes)]

    def _without_simple(self, wishes: Iterable[Wish], found: dict[str, list[Strip]]) -> Iterator[Wish]:
        """The wishes but for those that are a whole tensor in one run of bytes, whose strips are noted: 100,000 must cost little."""
        files, tensors = self.manifest.files, self.manifest.tensors
        sole = tensors.sole if isinstance(tensors, Tensors) else _none
        for wish in wishes:
            part, dtype, target = wish
            shape, size = target.shape, target.nbytes
            assert shape == part.box.shape, (part, shape)
            assert target.dtype == carrier(dtype), (part, target.dtype, dtype)
            if shape != part.global_shape or (place := sole(part.name, shape, dtype)) is None or not (size and target.flags.c_contiguous):
                yield wish
                continue
            file, at = place
            if at + size <= files[file].size:
                found[file].append(_new(Strip, (at, at + size, target.data.cast("B"), None, ())))
            else:
                yield wish

    def _strips(self, part: Part, dtype: str, target: np.ndarray) -> Iterator[tuple[str, Strip]]:
        self._check_kind(part, dtype)
        if not part.box.volume:
            return
        box, commons = part.box, []
        for stored in self._near(part):
            common = intersect(stored.box, box)
            if common is None:
                continue
            commons.append(Box(tuple(a - b for a, b in zip(common.offset, box.offset, strict=True)), common.shape))
            end, size = (stored.at or 0) + stored.box.volume * target.itemsize, self.manifest.files[stored.file].size
            if stored.at is None or end > size:
                raise CorruptCheckpointError(f"{part.name}: its bytes end at {end} of {self.folder / stored.file}, which has {size}")
            place = tuple(slice(a, b) for a, b in common.within(box))
            for strip in _strips_of(stored, common, target[place] if place else target.reshape(1)):
                yield stored.file, strip
        if (len(commons) != 1 or commons[0].volume != box.volume) and (fault := tiling_fault(box.shape, commons)):
            raise CorruptCheckpointError(f"{part.name}: of the part at {box.offset} in {self.folder}: {fault}")

    def _check_kind(self, part: Part, dtype: str) -> None:
        where, tensors = self.folder / MANIFEST_NAME, self.manifest.tensors
        if part.name not in tensors:
            raise CheckpointError(f"{part.name}: not in {where}, which holds {len(tensors)} tensors")
        shape, kind = tensors.kind(part.name) if isinstance(tensors, Tensors) else (tensors[part.name].shape, tensors[part.name].dtype)
        if shape != part.global_shape:
            raise CheckpointError(f"{part.name}: shape {shape} in {where}, {part.global_shape} in this model")
        if kind != dtype:
            raise CheckpointError(f"{part.name}: {kind} in {where}, {dtype} in this model")

    def _near(self, part: Part) -> Iterator[StoredBox]:
        """The boxes that share elements with the part, and maybe more; as many dims as it."""
        tensors = self.manifest.tensors
        for one in tensors.near(part.name, part.box) if isinstance(tensors, Tensors) else tensors[part.name].boxes:
            if len(one.box.shape) != len(part.global_shape) or not contains(whole(part.global_shape), one.box):
                raise CorruptCheckpointError(f"{part.name}: a box at {one.box.offset} of shape {one.box.shape} in {part.global_shape}")
            yield one

    def _run(self, tasks: Sequence[_Task]) -> None:
        number, count = self._turn
        begin = len(tasks) * number // count
        ordered = [*tasks[begin:], *tasks[:begin]]
        with self._lock:
            for task in ordered:
                self._users[task.file] = self._users.get(task.file, 0) + 1
        todo, ahead, failed, halt = iter(enumerate(ordered)), iter(ordered), list[tuple[int, Exception]](), Event()
        for task in islice(ahead, AHEAD):
            self._expect(task)

        def work() -> None:
            scratch = np.empty(BLOCK_BYTES, np.uint8)
            while not halt.is_set() and (one := next(todo, None)) is not None:
                try:
                    if (later := next(ahead, None)) is not None:
                        self._expect(later)
                    self._do(one[1], scratch)
                except Exception as error:  # noqa: BLE001 raised below
                    failed.append((one[0], error))
                    halt.set()

        helpers = [Thread(target=work, name="checkpoint-reader") for _ in range(min(THREADS, len(tasks)) - 1)]
        try:
            for one in helpers:
                one.start()
            work()
        finally:
            halt.set()  # all tasks are taken, or nobody wants them any more
            for one in helpers:
                one.join()
            self._users.clear()
        if failed:
            raise min(failed, key=lambda pair: pair[0])[1]

    def _do(self, task: _Task, scratch: np.ndarray) -> None:
        with self._naming(task):
            self._reader(task.file).read(task.chunk, task.strips, scratch)
        with self._lock:
            self._users[task.file] -= 1

    def _expect(self, task: _Task) -> None:
        """Let the kernel fetch what a task that comes soon will read; an error is told when it comes."""
        try:
            self._reader(task.file).expect(task.chunk, task.strips)
        except CheckpointError:
            return

    def _chunk(self, file: str, chunk: int) -> np.ndarray:
        """All bytes of a chunk, read now or one of the last times."""
        key = (file, chunk)
        if key not in self._kept:
            if len(self._kept) >= KEPT_CHUNKS:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = self._reader(file).whole(chunk)
        return self._kept[key]

    def _reader(self, file: str) -> FileReader:
        with self._lock:
            if file not in self._open:
                idle = [name for name in self._open if not self._users.get(name)]
                for name in idle[: max(0, len(self._open) - OPEN_FILES + 1)]:
                    self._open.pop(name).close()
                manifest = self.manifest
                self._open[file] = FileReader(self.folder / file, manifest.files[file], manifest.chunk_bytes, self._policy)
            return self._open[file]

    @contextmanager
    def _naming(self, task: _Task) -> Iterator[None]:
        """Errors within name the tensors that lie in the task's chunk."""
        try:
            yield
        except CheckpointError as error:
            names = tensors_in(self.manifest, task.file, task.chunk)
            more = f" (and {len(names) - NAMES_SHOWN} more)" if len(names) > NAMES_SHOWN else ""
            raise type(error)(f"{', '.join(names[:NAMES_SHOWN])}{more}: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def tensors_in(manifest: Manifest, file: str, chunk: int) -> list[str]:
    """Names of the tensors that have bytes in a chunk of a file, in their order there."""
    low, high = chunk * manifest.chunk_bytes, (chunk + 1) * manifest.chunk_bytes
    found: list[tuple[int, str]] = []
    for name in manifest.tensors:
        try:
            entry = manifest.tensors[name]
            width = carrier(entry.dtype).itemsize
        except CheckpointError:
            continue  # what is wrong with it is told when it is wanted
        here = [(one.at, one.at + one.box.volume * width) for one in entry.boxes if one.file == file and one.at is not None]
        found += [(start, name) for start, stop in here if start < high and stop > low]
    return [name for _, name in sorted(found)]


_FIRST = itemgetter(0)
_new = tuple.__new__


def loose_chunks(manifest: Manifest) -> dict[str, list[int]]:
    """Numbers of the chunks of each file in which no tensor lies, for a manifest of format 2 that has been looked through."""
    held: dict[str, set[int]] = {name: set() for name in manifest.files}
    for entry in manifest.tensors.values():
        width = carrier(entry.dtype).itemsize
        for one in entry.boxes:
            if one.at is None:
                return {}
            if one.box.volume:
                last = one.at + one.box.volume * width - 1
                held[one.file].update(range(one.at // manifest.chunk_bytes, last // manifest.chunk_bytes + 1))
    every = {name: range(len(manifest.files[name].xxh3_64)) for name in held}
    return {name: loose for name in held if (loose := [chunk for chunk in every[name] if chunk not in held[name]])}


def _none(*_: object) -> None:
    return None


def _by_chunk(strips: list[Strip], chunk_bytes: int) -> Iterator[tuple[int, list[Strip]]]:
    """(number, strips with bytes in it) of each chunk that has any; both ascending."""
    strips.sort(key=_FIRST)
    begun: list[Strip] = []
    at = chunk = 0
    while at < len(strips) or begun:
        if not begun:
            chunk = strips[at].first // chunk_bytes
        high = (chunk + 1) * chunk_bytes
        after = bisect_left(strips, high, at, key=_FIRST)
        begun += strips[at:after]
        yield chunk, begun
        begun = [strip for strip in begun if strip.last > high]
        at, chunk = after, chunk + 1


def _strips_of(stored: StoredBox, common: Box, target: np.ndarray) -> Iterator[Strip]:
    """The strips that fill `target` (one dim at least) with a box that lies inside a stored one."""
    assert stored.at is not None
    width, shape = target.itemsize, stored.box.shape
    begin = [a - b for a, b in zip(common.offset, stored.box.offset, strict=True)]
    if not stored.panel:
        strides = [width] * max(1, len(shape))
        for dim in range(len(shape) - 1, 0, -1):
            strides[dim - 1] = strides[dim] * shape[dim]
        yield from strips_of(stored.at + sum(a * b for a, b in zip(begin, strides, strict=False)), tuple(strides), target)
        return
    rows, panel, (top, left), stop = shape[0], stored.panel, begin, begin[1] + common.shape[1]
    for edge in range(left // panel * panel, stop, panel):
        low, high = max(left, edge), min(stop, edge + panel)
        first = stored.at + (edge * rows + top * panel + low - edge) * width
        yield from strips_of(first, (panel * width, width), target[:, low - left : high - left])
