"""Whether the bytes of a checkpoint are those that were written: index and sizes first, sums of chunks after; no h5py, no torch.

What is wrong comes back in words, each naming its file or tensor; only a programmer's mistake is raised.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Literal

import xxhash

from slurmtrain.boxes import tiling_fault
from slurmtrain.errors import CheckpointError, CorruptCheckpointError, one_line
from slurmtrain.rundir import checkpoint_step
from slurmtrain.store.manifest import CHUNK_BYTES, MANIFEST_NAME, FileSum, Manifest, TensorEntry

Policy = Literal["full", "sampled", "sizes"]
"""How many chunks of a file are compared with their sums: all; every 8th, the first and the last; none."""

SAMPLED_EVERY = 8
THREADS = 4
SMALL_BYTES = 16 << 20
"""So much is read by one thread."""
WIDTHS: Mapping[str, int] = {
    **dict.fromkeys(("float64", "int64", "uint64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("int8", "uint8", "bool", "float8_e4m3fn", "float8_e5m2"), 1),
}
"""Bytes of an element, by the name of its type."""
MOST_DIMS, MOST_ELEMENTS = 32, 1 << 59
"""Of an array of numpy's, an empty one too: there a dim of 0 counts as 1."""


def sampled(count: int, policy: Policy) -> list[int]:
    """Numbers of the chunks, of `count`, that a policy compares.

    >>> sampled(20, "sampled"), sampled(2, "full"), sampled(9, "sizes")
    ([0, 8, 16, 19], [0, 1], [])
    """
    if policy == "sizes":
        return []
    return [i for i in range(count) if policy == "full" or i % SAMPLED_EVERY == 0 or i == count - 1]


def sums_of(path: Path, chunk_bytes: int = CHUNK_BYTES) -> FileSum:
    """Size and xxh3_64 of each chunk of a file. Raises OSError."""
    sums: list[str] = []
    size = 0
    with open(path, "rb", buffering=0) as file:
        buffer = memoryview(bytearray(max(1, min(chunk_bytes, file.seek(0, 2)))))
        file.seek(0)
        while count := _fill(file, buffer):
            sums.append(xxhash.xxh3_64_hexdigest(buffer[:count]))
            size += count
    return FileSum(size, tuple(sums))


def _fill(file: FileIO, buffer: memoryview) -> int:
    """Read until the buffer is full or the file ends: a raw read may give less than it was asked for."""
    done = 0
    while done < len(buffer):
        count = file.readinto(buffer[done:])
        if not count:
            break
        done += count
    return done


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint. Raises CheckpointError, naming the file, where there is none that can be read."""
    path = folder / MANIFEST_NAME
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise CheckpointError(f"{path}: not a file")
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error
    return Manifest.from_json(data, str(path))


def size_problems(folder: Path, manifest: Manifest) -> list[str]:
    """Files that are missing or have another size than the manifest says, and a folder of another step's name; costs one stat a file."""
    problems = _name_problems(folder, manifest)
    for name, want in manifest.files.items():
        try:
            status = (folder / name).stat()
        except OSError as error:
            problems.append(f"{name}: {error.strerror or error}")
            continue
        if not stat.S_ISREG(status.st_mode):
            problems.append(f"{name}: not a file")
        elif status.st_size != want.size:
            problems.append(f"{name}: {status.st_size} bytes, {want.size} were written")
    return problems


def index_problems(folder: Path, manifest: Manifest) -> list[str]:
    """What is wrong in the manifest itself, of which no file is looked at.

    Its step is that of the folder's name; there is a sum for each chunk; boxes tile their tensor, lie inside their file, and share no
    byte of it.
    """
    problems = _name_problems(folder, manifest)
    for name, one in manifest.files.items():
        if len(one.xxh3_64) != -(-one.size // manifest.chunk_bytes):
            problems.append(f"{MANIFEST_NAME}: {len(one.xxh3_64)} sums for the {one.size} bytes of {name}")
    runs: dict[str, list[tuple[int, int, str]]] = {name: [] for name in manifest.files}
    for name in manifest.tensors:
        try:
            entry = manifest.tensors[name]
        except CorruptCheckpointError as error:
            problems.append(str(error))
            continue
        problems += _entry_problems(name, entry, runs)
    for file, found in runs.items():
        problems += _run_problems(file, manifest.files[file].size, found)
    return problems


def _name_problems(folder: Path, manifest: Manifest) -> list[str]:
    named = checkpoint_step(folder.name)
    return [] if named in {None, manifest.step} else [f"{MANIFEST_NAME}: step {manifest.step} in a folder of step {named}"]


def _entry_problems(name: str, entry: TensorEntry, runs: Mapping[str, list[tuple[int, int, str]]]) -> Iterator[str]:
    """What is wrong with a tensor; the bytes of its boxes, (start, stop, name), are added to those of their files."""
    width = WIDTHS.get(entry.dtype)
    if width is None:
        yield f"{name}: elements of unknown type {entry.dtype!r}"
        return
    if len(entry.shape) > MOST_DIMS or prod(extent or 1 for extent in entry.shape) > MOST_ELEMENTS:
        yield f"{name}: no array has the shape {one_line(str(entry.shape), 100)}"
        return
    if any(len(one.box.shape) != len(entry.shape) for one in entry.boxes):
        yield f"{name}: a box has another number of dims than the tensor of shape {entry.shape}"
    elif fault := tiling_fault(entry.shape, (one.box for one in entry.boxes)):
        yield f"{name}: {fault}"
    for one in entry.boxes:
        if one.file not in runs:
            yield f"{name}: a box lies in {one.file}, which is not among the files"
        elif one.at is not None and one.box.volume:
            runs[one.file].append((one.at, one.at + one.box.volume * width, name))


def _run_problems(file: str, size: int, runs: list[tuple[int, int, str]]) -> Iterator[str]:
    runs.sort()
    for (_, stop, name), (start, _, other) in pairwise(runs):
        if start < stop:
            yield f"{other}: byte {start} of {file} belongs to {name}"
    if runs and runs[-1][1] > size:
        yield f"{runs[-1][2]}: its bytes end at {runs[-1][1]} of {file}, which has {size}"


def sum_problems(folder: Path, manifest: Manifest, names: Iterable[str] | None = None, policy: Policy = "full") -> list[str]:
    """Chunks of the files named (default: all) whose bytes differ from those that were written, as far as the policy looks."""
    chosen = list(manifest.files if names is None else names)
    if policy == "sizes":
        return []

    def problems_of(name: str) -> list[str]:
        return _file_problems(folder / name, manifest.files[name], manifest.chunk_bytes, policy)

    if len(chosen) < 2 or sum(manifest.files[name].size for name in chosen) < SMALL_BYTES:
        return [problem for name in chosen for problem in problems_of(name)]
    with ThreadPoolExecutor(min(THREADS, len(chosen))) as pool:
        return [problem for problems in pool.map(problems_of, chosen) for problem in problems]


def _file_problems(path: Path, want: FileSum, chunk_bytes: int, policy: Policy) -> list[str]:
    problems = []
    try:
        with open(path, "rb", buffering=0) as file:
            size = file.seek(0, 2)
            if size != want.size:
                return [f"{path.name}: {size} bytes, {want.size} were written"]
            buffer = memoryview(bytearray(min(chunk_bytes, size)))
            for i in sampled(len(want.xxh3_64), policy):
                file.seek(i * chunk_bytes)
                count = _fill(file, buffer[: max(0, size - i * chunk_bytes)])
                if xxhash.xxh3_64_hexdigest(buffer[:count]) != want.xxh3_64[i]:
                    problems.append(f"{path.name}: chunk {i} (bytes from {i * chunk_bytes}) differs from what was written")
    except OSError as error:
        problems.append(f"{path.name}: {error.strerror or error}")
    return problems


def verify(folder: Path, policy: Policy = "full") -> list[str]:
    """What is wrong with a checkpoint, cheapest checks first and no further than the first kind that fails; empty: nothing."""
    try:
        manifest = read_manifest(folder)
    except CheckpointError as error:
        return [str(error)]
    return cheap_problems(folder, manifest) or sum_problems(folder, manifest, policy=policy)


def cheap_problems(folder: Path, manifest: Manifest) -> list[str]:
    """What can be told without reading the files: `index_problems`, else `size_problems`."""
    return index_problems(folder, manifest) or size_problems(folder, manifest)
