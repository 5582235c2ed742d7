"""Checkpoints of plain bytes for tests of the store: what is in the files plays no part there."""

from __future__ import annotations

from pathlib import Path

import xxhash

from slurmtrain.boxes import Box
from slurmtrain.rundir import RunDir
from slurmtrain.store.commit import open_staging, publish
from slurmtrain.store.manifest import FileSum, Manifest, StoredBox, TensorEntry
from slurmtrain.syscalls import SYSTEM, Syscalls, write_new

CHUNK = 1000
FILES = ("rank-00000.h5", "rank-00001.h5")


def filled(name: str, step: int) -> bytes:
    return f"{name} of step {step};".encode() * 200


def sums(data: bytes) -> FileSum:
    return FileSum(len(data), tuple(xxhash.xxh3_64(data[i : i + CHUNK]).hexdigest() for i in range(0, len(data), CHUNK)))


def manifest_of(step: int, files: dict[str, bytes], attempt: int = 1, t: float = 0.0, metrics: dict[str, float] | None = None) -> Manifest:
    """Of a tensor of two rows a file, each file's from byte 16 on."""
    halves = tuple(StoredBox(Box((2 * i, 0), (2, 3)), name, "d", None, 16) for i, name in enumerate(files))
    tensors = {"model/w": TensorEntry((2 * len(files), 3), "float32", halves)}
    state = {"lr": 0.1, "metrics": metrics or {}}
    return Manifest(step, attempt, 10 * step, {"world": 2}, {n: sums(d) for n, d in files.items()}, tensors, state, CHUNK, t)


def save(
    run: RunDir, step: int, attempt: int = 1, *, t: float = 0.0, metrics: dict[str, float] | None = None, calls: Syscalls = SYSTEM
) -> Path:
    """A checkpoint of two files, by the protocol."""
    files = {name: filled(name, step) for name in FILES}
    staging = open_staging(run, step, attempt, lambda: None, calls=calls)
    assert staging is not None
    for name, data in files.items():
        write_new(calls, staging / name, data)
    return publish(run, staging, manifest_of(step, files, attempt, t, metrics), lambda: None, calls=calls)
