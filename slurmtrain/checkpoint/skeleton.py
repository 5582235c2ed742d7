"""Where every byte of a checkpoint's file goes, before one is written: HDF5 makes the structure in memory, data is written around it.

HDF5 lays out its datasets in a file that is none: it notes what HDF5 writes (some hundred bytes a dataset) and no data, for space is
allocated early and never filled. So the file is written once, from its first byte to its last, by whoever holds the data, summed on
the way, without HDF5; and it is read at known places, also without it. To h5py and h5dump it is an ordinary file.

- A box of 1 MiB or more is a dataset `NAME@OFFSET`; smaller ones share one flat dataset for each element type (`flat-float32`).
- Large matrices lie in panels of an eighth of their columns (`store.manifest`), as chunks of a chunked dataset without filters.
- No attributes: what a dataset is stands in the manifest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import h5py
from h5py import h5d, h5o, h5p, h5s

from slurmtrain.boxes import Box
from slurmtrain.checkpoint.dtypes import carrier
from slurmtrain.checkpoint.h5types import hdf5_type
from slurmtrain.checkpoint.layout import BoxSpec, FileLayout
from slurmtrain.store.manifest import StoredBox

SMALL_BYTES = 1 << 20
PAGE = 4096
PANELS = 8
PANEL_BYTES = 4 << 20
"""Panels are not smaller: what is read is compared by whole chunks, so a part of a smaller one would save little reading, and a box
without panels is written and read as a whole without a copy.
"""
PANEL_ROW_BYTES = 512
"""Panels are not narrower: short runs of bytes read slowly."""
MOST_CHUNK_BYTES = (1 << 32) - 1
"""HDF5's own bound."""


class _Noted:
    """A file of which only the bytes that HDF5 writes are kept."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, bytes]] = []
        self.size = self._at = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self.size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def write(self, data: bytes) -> int:
        count = len(data)
        self.pieces.append((self._at, bytes(data)))
        self._at += count
        self.size = max(self.size, self._at)
        return count

    def readinto(self, target: memoryview) -> int:
        start, stop = self._at, self._at + len(target)
        target[:] = bytes(len(target))
        for at, data in self.pieces:
            low, high = max(at, start), min(at + len(data), stop)
            if low < high:
                target[low - start : high - start] = data[low - at : high - at]
        self._at = stop
        return stop - start

    def read(self, count: int) -> bytes:
        """h5py takes what has this for a file."""
        data = bytearray(count)
        self.readinto(memoryview(data))
        return bytes(data)

    def truncate(self, size: int | None = None) -> int:
        self.size = self._at if size is None else size
        return self.size

    def flush(self) -> None:
        return


def lay_out(file: str, specs: Sequence[BoxSpec]) -> FileLayout:
    """The layout of a file that holds these boxes, the same each time for the same boxes."""
    noted = _Noted()
    stored: list[StoredBox | None] = [None] * len(specs)
    with h5py.File(noted, "w", alignment_threshold=1 << 16, alignment_interval=PAGE) as made:
        small: dict[str, list[int]] = {}
        for i, spec in enumerate(specs):
            assert spec.box.volume, spec
            if spec.nbytes < SMALL_BYTES:
                small.setdefault(spec.dtype, []).append(i)
            else:
                stored[i] = _large(made, file, spec)
        for dtype, members in small.items():
            for i, one in zip(members, _flat(made, file, dtype, [specs[i].box for i in members]), strict=True):
                stored[i] = one
    whole = tuple(one for one in stored if one is not None)
    assert len(whole) == len(specs)
    return FileLayout(file, noted.size, _joined(noted.pieces), tuple(specs), whole)


def panel_of(spec: BoxSpec) -> int:
    """Columns of a panel of this box; 0 where it lies in row-major order.

    >>> panel_of(BoxSpec("w", (4096, 4096), Box((0, 0), (4096, 4096)), "float32")), panel_of(BoxSpec("v", (9,), Box((0,), (9,)), "float32"))
    (512, 0)
    """
    if len(spec.box.shape) != 2 or spec.nbytes < PANELS * PANEL_BYTES:
        return 0
    rows, columns = spec.box.shape
    width = carrier(spec.dtype).itemsize
    count = PANELS
    while columns % count == 0 and columns // count * width >= PANEL_ROW_BYTES:
        size = rows * (columns // count) * width
        if size % PAGE:
            return 0
        if size <= MOST_CHUNK_BYTES:
            return columns // count
        count *= 2
    return 0


def _dataset(made: h5py.File, name: str, dtype: str, shape: tuple[int, ...], chunk: tuple[int, ...] | None = None) -> h5d.DatasetID:
    how = h5p.create(h5p.DATASET_CREATE)
    how.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    how.set_fill_time(h5d.FILL_TIME_NEVER)
    how.set_obj_track_times(False)
    if chunk is not None:
        how.set_chunk(chunk)
    links = h5p.create(h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    dataset = h5d.create(made.id, None, hdf5_type(dtype), h5s.create_simple(shape), how)
    h5o.link(dataset, made.id, name.encode(), links)
    return dataset


def _large(made: h5py.File, file: str, spec: BoxSpec) -> StoredBox:
    name = f"{spec.name}@{','.join(map(str, spec.box.offset))}"
    panel, shape = panel_of(spec), spec.box.shape
    if not panel:
        at = _dataset(made, name, spec.dtype, shape).get_offset()
        return StoredBox(spec.box, file, name, None, at)
    dataset = _dataset(made, name, spec.dtype, shape, (shape[0], panel))
    at, size = dataset.get_chunk_info(0).byte_offset, shape[0] * panel * carrier(spec.dtype).itemsize
    for i in range(shape[1] // panel):
        info = dataset.get_chunk_info(i)
        assert (info.byte_offset, info.size, info.chunk_offset) == (at + i * size, size, (0, i * panel)), (spec, i, info)
    return StoredBox(spec.box, file, name, None, at, panel)


def _flat(made: h5py.File, file: str, dtype: str, boxes: Sequence[Box]) -> list[StoredBox]:
    """One dataset for all these boxes, one after another."""
    name, width = f"flat-{dtype}", carrier(dtype).itemsize
    at = _dataset(made, name, dtype, (sum(box.volume for box in boxes),)).get_offset()
    starts = accumulate((box.volume for box in boxes), initial=0)
    return [StoredBox(box, file, name, start, at + start * width) for box, start in zip(boxes, starts, strict=False)]


def _joined(pieces: Sequence[tuple[int, bytes]]) -> tuple[tuple[int, bytes], ...]:
    """What HDF5 wrote, in the order in which it did, as runs that do not touch: later bytes lie over earlier ones.

    >>> _joined([(8, b"abcd"), (2, b"xy"), (4, b"z"), (9, b"BC")])
    ((2, b'xyz'), (8, b'aBCd'))
    """
    runs: list[list[int]] = []
    for low, high in sorted((at, at + len(data)) for at, data in pieces):
        if runs and low <= runs[-1][1]:
            runs[-1][1] = max(runs[-1][1], high)
        else:
            runs.append([low, high])
    starts, joined = [low for low, _ in runs], [bytearray(high - low) for low, high in runs]
    for at, data in pieces:
        i = bisect_right(starts, at) - 1
        joined[i][at - starts[i] : at - starts[i] + len(data)] = data
    return tuple(zip(starts, map(bytes, joined), strict=True))
