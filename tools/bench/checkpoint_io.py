#!/usr/bin/env python3
"""Checkpoint files against raw files of the same bytes, in one run: ratios, because a disk's own speed changes from run to run.

    tools/bench/checkpoint_io.py [--mib 256] [--repeats 5] [--folder DIR]

Write: fsync included; the checkpoint writer also sums its bytes. Read: cold drops the file from memory first (posix_fadvise).
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from slurmtrain.boxes import Box, whole
from slurmtrain.checkpoint.h5 import RankFileReader, RankFileWriter
from slurmtrain.store.verify import sums_of

LARGE = (2048, 2048)


def drop(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def write_raw(path: Path, arrays: list[np.ndarray]) -> None:
    with open(path, "wb", buffering=0) as file:
        for array in arrays:
            file.write(array)
        os.fsync(file.fileno())


def write_checkpoint(path: Path, arrays: list[np.ndarray]) -> RankFileWriter:
    writer = RankFileWriter(path)
    for i, array in enumerate(arrays):
        writer.add(f"t{i}", whole(array.shape), array)
    writer.close()
    return writer


def read_raw(path: Path, arrays: list[np.ndarray]) -> None:
    with open(path, "rb", buffering=0) as file:
        for array in arrays:
            file.readinto(array)


def read_boxes(writer: RankFileWriter, arrays: list[np.ndarray], cut: Callable[[Box], Box] = lambda box: box) -> None:
    with RankFileReader(writer.path) as reader:
        for (_, stored), array in zip(writer.boxes, arrays, strict=True):
            box = cut(stored.box)
            reader.read(stored, box, array.dtype.name, array if box == stored.box else None)


def eighth(dim: int) -> Callable[[Box], Box]:
    """The first eighth of a dim."""
    return lambda box: Box(box.offset, tuple(n // 8 if i == dim else n for i, n in enumerate(box.shape)))


def timed(results: dict[str, list[float]], name: str, deed: Callable[[], object], cold: Path | None = None) -> None:
    if cold is not None:
        drop(cold)
    start = time.perf_counter()
    deed()
    results.setdefault(name, []).append(time.perf_counter() - start)


def measure(folder: Path, shape: tuple[int, ...], count: int, repeats: int) -> dict[str, float]:
    """Median seconds of each way."""
    results: dict[str, list[float]] = {}
    for _ in range(repeats):
        once(results, folder, [np.random.default_rng(i).standard_normal(shape, np.float32) for i in range(count)])
    return {name: statistics.median(times) for name, times in results.items()}


def once(results: dict[str, list[float]], folder: Path, arrays: list[np.ndarray]) -> None:
    raw, h5 = folder / "raw", folder / "rank-00000.h5"
    for path in (raw, h5):
        path.unlink(missing_ok=True)
    timed(results, "write raw", lambda: write_raw(raw, arrays))
    timed(results, "write checkpoint", lambda: write_checkpoint(h5, arrays))
    writer = write_checkpoint(h5, arrays)
    timed(results, "read cold raw", lambda: read_raw(raw, arrays), raw)
    timed(results, "read cold checkpoint", lambda: read_boxes(writer, arrays), h5)
    timed(results, "read cold sums", lambda: sums_of(h5), h5)
    timed(results, "read warm raw", lambda: read_raw(raw, arrays))
    timed(results, "read warm checkpoint", lambda: read_boxes(writer, arrays))
    timed(results, "read warm sums", lambda: sums_of(h5))
    if arrays[0].ndim == 2:
        timed(results, "read eighth of rows", lambda: read_boxes(writer, arrays, eighth(0)), h5)
        timed(results, "read eighth of columns", lambda: read_boxes(writer, arrays, eighth(1)), h5)


def show(title: str, size: int, seconds: dict[str, float]) -> None:
    print(f"{title}: {size / 1e6:.0f} MB")
    for name, value in seconds.items():
        base = "write raw" if name.startswith("write") else "read warm raw" if "warm" in name else "read cold raw"
        print(f"  {name:24} {value * 1e3:8.1f} ms   {seconds[base] / value:5.2f} x raw")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        for title, shape in (("large tensors (2048 x 2048 fp32)", LARGE), ("small tensors (8 kB)", (2048,))):
            each = int(np.prod(shape)) * 4
            count = max(1, (options.mib if shape == LARGE else options.mib // 8) * (1 << 20) // each)
            show(f"{count} {title}", count * each, measure(Path(name), shape, count, options.repeats))


if __name__ == "__main__":
    main()
