"""Whether the bytes of a checkpoint are those that were written: sizes first, sums of chunks second; no h5py, no torch."""

from __future__ import annotations

from collections.abc import Iterable
from io import FileIO
from pathlib import Path

import xxhash

from slurmtrain.boxes import tiling_fault
from slurmtrain.errors import CheckpointError
from slurmtrain.rundir import checkpoint_step
from slurmtrain.store.manifest import CHUNK_BYTES, MANIFEST_NAME, FileSum, Manifest


def sums_of(path: Path, chunk_bytes: int = CHUNK_BYTES) -> FileSum:
    """Size and xxh3_64 of each chunk of a file. Raises OSError."""
    sums: list[str] = []
    size = 0
    buffer = memoryview(bytearray(chunk_bytes))
    with open(path, "rb", buffering=0) as file:
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
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error
    return Manifest.from_json(data, str(path))


def size_problems(folder: Path, manifest: Manifest) -> list[str]:
    """Files that are missing or have another size than the manifest says; costs one stat a file."""
    problems = []
    for name, want in manifest.files.items():
        try:
            size = (folder / name).stat().st_size
        except OSError as error:
            problems.append(f"{name}: {error.strerror or error}")
            continue
        if size != want.size:
            problems.append(f"{name}: {size} bytes, {want.size} were written")
    return problems


def index_problems(folder: Path, manifest: Manifest) -> list[str]:
    """What is wrong in the manifest itself: its step, its sums, boxes that do not tile their tensor."""
    problems = []
    named = checkpoint_step(folder.name)
    if named is not None and named != manifest.step:
        problems.append(f"{MANIFEST_NAME}: step {manifest.step} in a folder of step {named}")
    for name, one in manifest.files.items():
        if len(one.xxh3_64) != -(-one.size // manifest.chunk_bytes):
            problems.append(f"{MANIFEST_NAME}: {len(one.xxh3_64)} sums for the {one.size} bytes of {name}")
    for name, entry in manifest.tensors.items():
        if any(len(one.box.shape) != len(entry.shape) for one in entry.boxes):
            problems.append(f"{name}: a box has another number of dims than the tensor of shape {entry.shape}")
        elif fault := tiling_fault(entry.shape, (one.box for one in entry.boxes)):
            problems.append(f"{name}: {fault}")
    return problems


def sum_problems(folder: Path, manifest: Manifest, names: Iterable[str] | None = None) -> list[str]:
    """Chunks whose bytes differ from those that were written; reads all of the files named (default: all)."""
    problems = []
    for name in manifest.files if names is None else names:
        want = manifest.files[name]
        try:
            have = sums_of(folder / name, manifest.chunk_bytes)
        except OSError as error:
            problems.append(f"{name}: {error.strerror or error}")
            continue
        if have.size != want.size:
            problems.append(f"{name}: {have.size} bytes, {want.size} were written")
            continue
        bad = [i for i, (a, b) in enumerate(zip(have.xxh3_64, want.xxh3_64, strict=True)) if a != b]
        problems += [f"{name}: chunk {i} (bytes from {i * manifest.chunk_bytes}) differs from what was written" for i in bad]
    return problems


def verify(folder: Path, *, sums: bool = True) -> list[str]:
    """What is wrong with a checkpoint, cheapest checks first and no further than the first kind that fails; empty: nothing.

    `sums=False` reads the manifest and the sizes alone.
    """
    try:
        manifest = read_manifest(folder)
    except CheckpointError as error:
        return [str(error)]
    found = index_problems(folder, manifest) or size_problems(folder, manifest)
    return found or (sum_problems(folder, manifest) if sums else [])
