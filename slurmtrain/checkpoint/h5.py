"""One HDF5 file a rank: boxes of tensors in, boxes out. The one door to h5py.

- Contiguous datasets, no attributes: what a dataset is stands in the manifest.
- Boxes under 1 MiB share flat one-dimensional datasets, one kind per element type (creating a dataset costs 0.15 ms, a slice of one 1 us).
- Column slices are read in blocks of whole rows: short runs of bytes, one by one, are slow on disks and parallel file systems.
- No file locks: parallel file systems often have none, and the commit protocol needs none.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Self

import h5py
import numpy as np
from h5py import h5d, h5s

from slurmtrain.atomic import fsync_file
from slurmtrain.boxes import Box, Region
from slurmtrain.checkpoint.dtypes import carrier
from slurmtrain.checkpoint.h5types import hdf5_type
from slurmtrain.errors import CheckpointError, CorruptCheckpointError
from slurmtrain.store.manifest import CHUNK_BYTES, FileSum, StoredBox
from slurmtrain.store.verify import sums_of

SMALL_BYTES = 1 << 20
SEGMENT_BYTES = 64 << 20
BLOCK_BYTES = 8 << 20
WINDOW_BYTES = 2 << 20
"""Of a flat dataset this much is read at once and kept: its boxes are mostly wanted one after another."""
LONG_RUN_BYTES = 256 << 10
"""Runs of contiguous bytes from this length on are read one by one."""
MAX_WASTE = 16
"""Whole rows are read for a part of them up to this ratio."""


def rank_file_name(rank: int) -> str:
    """The name of a rank's file in a checkpoint."""
    return f"rank-{rank:05d}.h5"


class RankFileWriter:
    """Writes a new file; `boxes` lists what it holds. Raises OSError or RuntimeError (HDF5's) when the disk refuses."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.boxes: list[tuple[str, StoredBox]] = []
        self._file = h5py.File(path, "w", locking=False)
        self._small: dict[str, list[np.ndarray]] = {}
        self._small_bytes: dict[str, int] = {}
        self._segments: dict[str, int] = {}
        self._datasets = 0

    def add(self, name: str, box: Box, array: np.ndarray, dtype: str = "") -> None:
        """Store a box of the tensor `name`.

        `array`: of the box's shape, elements in the carrier type of `dtype` (default: the array's own); it must not change before
        `close`. An empty box leaves no trace.
        """
        dtype = dtype or array.dtype.name
        assert array.shape == box.shape, (name, array.shape, box)
        assert array.dtype == carrier(dtype), (name, array.dtype, dtype)
        if not box.volume:
            return
        if array.nbytes < SMALL_BYTES:
            self._add_small(name, box, array, dtype)
            return
        self._datasets += 1
        dataset = f"d{self._datasets:06d}"
        self._write(dataset, np.ascontiguousarray(array), dtype)
        self.boxes.append((name, StoredBox(box, self.path.name, dataset)))

    def close(self, chunk_bytes: int = CHUNK_BYTES) -> FileSum:
        """Finish the file, make it durable, and sum its bytes (read back from memory while the disk is busy)."""
        for dtype in list(self._small):
            self._flush(dtype)
        self._file.close()
        with ThreadPoolExecutor(1) as pool:
            synced = pool.submit(fsync_file, self.path)
            sums = sums_of(self.path, chunk_bytes)
            synced.result()
        return sums

    def abort(self) -> None:
        """Close the file as it is, after an error; a disk that refuses is not asked twice."""
        try:
            self._file.close()
        except (OSError, RuntimeError):
            return

    def _add_small(self, name: str, box: Box, array: np.ndarray, dtype: str) -> None:
        if self._small_bytes.get(dtype, 0) + array.nbytes > SEGMENT_BYTES:
            self._flush(dtype)
        done = self._small_bytes.get(dtype, 0)
        self.boxes.append((name, StoredBox(box, self.path.name, self._segment(dtype), done // array.itemsize)))
        self._small.setdefault(dtype, []).append(array)
        self._small_bytes[dtype] = done + array.nbytes

    def _segment(self, dtype: str) -> str:
        """The name of the flat dataset that pending boxes of this type go into."""
        return f"flat-{dtype}-{self._segments.get(dtype, 0)}"

    def _flush(self, dtype: str) -> None:
        pending = self._small.pop(dtype)
        self._write(self._segment(dtype), np.concatenate([array.reshape(-1) for array in pending]), dtype)
        self._small_bytes[dtype] = 0
        self._segments[dtype] = self._segments.get(dtype, 0) + 1

    def _write(self, dataset: str, array: np.ndarray, dtype: str) -> None:
        kind = hdf5_type(dtype)
        made = h5d.create(self._file.id, dataset.encode(), kind, h5s.create_simple(array.shape))
        made.write(h5s.ALL, h5s.ALL, array, mtype=kind)


class RankFileReader:
    """Reads boxes of one file. Errors name the file: CheckpointError (not there), CorruptCheckpointError (not what the index says)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._datasets: dict[tuple[str, str], h5d.DatasetID] = {}
        self._windows: dict[str, tuple[int, np.ndarray]] = {}
        self._block = np.empty(0, np.uint8)
        try:
            self._file = h5py.File(path, "r", locking=False)
        except FileNotFoundError as error:
            raise CheckpointError(f"{path}: no such file") from error
        except (OSError, RuntimeError) as error:
            raise CorruptCheckpointError(f"{path}: cannot be opened as HDF5: {str(error).splitlines()[0]}") from error

    def read(self, stored: StoredBox, box: Box, dtype: str, out: np.ndarray | None = None) -> np.ndarray:
        """The box, which lies inside `stored`, as an array of its shape in the carrier type; `out` is filled where it is given."""
        out = np.empty(box.shape, carrier(dtype)) if out is None else out
        assert out.shape == box.shape, (out.shape, box)
        assert out.dtype == carrier(dtype), (out.dtype, dtype)
        if not box.volume:
            return out
        try:
            self._read(stored, box.within(stored.box), dtype, out)
        except (OSError, RuntimeError, KeyError, ValueError) as error:
            raise CorruptCheckpointError(f"{self.path}: dataset {stored.dataset}: {str(error).splitlines()[0]}") from error
        return out

    def _read(self, stored: StoredBox, region: Region, dtype: str, out: np.ndarray) -> None:
        source, shape = self._open(stored.dataset, dtype), stored.box.shape
        if stored.start is not None:
            flat = self._flat(source, stored, dtype)
            out[...] = flat.reshape(shape)[_slices(region)]
        elif source.shape != shape:
            raise ValueError(f"shape {source.shape}, the index says {shape}")
        elif _rows_pay(shape, region, out.itemsize):
            self._read_rows(source, region, out, dtype)
        elif out.flags.c_contiguous:
            _select(source, region, out, dtype)
        else:
            block = np.empty(out.shape, out.dtype)
            _select(source, region, block, dtype)
            out[...] = block

    def _open(self, dataset: str, dtype: str) -> h5d.DatasetID:
        key = (dataset, dtype)
        if key not in self._datasets:
            source = h5d.open(self._file.id, dataset.encode())
            if not source.get_type().equal(hdf5_type(dtype)):
                raise ValueError(f"its elements are not {dtype}")
            self._datasets[key] = source
        return self._datasets[key]

    def _flat(self, source: h5d.DatasetID, stored: StoredBox, dtype: str) -> np.ndarray:
        """The elements of a box in a flat dataset, out of a window of it that is kept."""
        assert stored.start is not None
        start, stop = stored.start, stored.start + stored.box.volume
        first, window = self._windows.get(stored.dataset, (0, np.empty(0, carrier(dtype))))
        if not first <= start <= stop <= first + window.size:
            total = source.shape[0] if len(source.shape) == 1 else 0
            in_turn = first <= start <= first + window.size  # else boxes come at random, and a window each would be waste
            last = min(total, start + WINDOW_BYTES // window.itemsize) if in_turn else stop
            first, window = start, np.empty(max(stop, last) - start, window.dtype)
            _select(source, ((start, start + window.size),), window, dtype)
            self._windows[stored.dataset] = (first, window)
        return window[start - first : stop - first]

    def _read_rows(self, source: h5d.DatasetID, region: Region, out: np.ndarray, dtype: str) -> None:
        """Whole rows (all of dims 1..) in blocks, cut in memory."""
        (first, last), shape = region[0], source.shape
        whole_row = tuple((0, size) for size in shape[1:])
        row_bytes = out.itemsize * prod(shape[1:])
        count = max(1, BLOCK_BYTES // row_bytes)
        if self._block.size < count * row_bytes:
            self._block = np.empty(count * row_bytes, np.uint8)  # kept: fresh memory costs more than the read
        for row in range(first, last, count):
            stop = min(row + count, last)
            block = self._block[: (stop - row) * row_bytes].view(out.dtype).reshape(stop - row, *shape[1:])
            _select(source, ((row, stop), *whole_row), block, dtype)
            out[row - first : stop - first] = block[(slice(None), *_slices(region[1:]))]

    def close(self) -> None:
        self._datasets.clear()
        self._windows.clear()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _slices(region: Region) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in region)


def _select(source: h5d.DatasetID, region: Region, out: np.ndarray, dtype: str) -> None:
    """Read a hyperslab into a C-contiguous array."""
    if any(stop > size for (_, stop), size in zip(region, source.shape, strict=True)):
        raise ValueError(f"shape {source.shape} does not hold {region}")
    space = source.get_space()
    extents = tuple(b - a for a, b in region)
    space.select_hyperslab(tuple(a for a, _ in region), extents)
    source.read(h5s.create_simple(extents), space, out, mtype=hdf5_type(dtype))


def _rows_pay(shape: tuple[int, ...], region: Region, itemsize: int) -> bool:
    """Whether reading whole rows (all of dims 1..) and cutting them beats many short reads."""
    extents = [b - a for a, b in region]
    if extents[1:] == list(shape[1:]):
        return False
    run = itemsize
    for extent, size in zip(reversed(extents), reversed(shape), strict=True):
        run *= extent
        if extent != size:
            break
    return run < LONG_RUN_BYTES and prod(shape[1:]) <= MAX_WASTE * prod(extents[1:])
