"""Tokens in all three formats, made from the descriptions of the formats without the code under test."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import h5py
import numpy as np
import xxhash

MARKS = list[list[int]]
"""For each token of each document 1 where it belongs to an answer."""


def _flat(lists):
    return [item for one in lists for item in one]


def _offsets(documents):
    return np.array([0, *np.cumsum([len(document) for document in documents])], "<i8")


def write_folder(path, documents: list[list[int]], dtype="uint16", *, vocab=257, eod=256, changes=None, marks: MARKS | None = None):
    """A folder of `slurmtrain data build`."""
    path.mkdir(parents=True, exist_ok=True)
    tokens = np.array(_flat(documents), {"uint16": "<u2", "uint32": "<u4"}[dtype]).tobytes()
    contents = {"tokens.bin": tokens, "documents.bin": _offsets(documents).tobytes()}
    if marks is not None:
        contents["answers.bin"] = bytes(_flat(marks))
    for name, data in contents.items():
        (path / name).write_bytes(data)
    files = {name: {"size": len(data), "xxh3_64": xxhash.xxh3_64(data).hexdigest()} for name, data in contents.items()}
    version = 1 if marks is None else 2
    count = len(_flat(documents))
    index = {"v": version, "dtype": dtype, "tokens": count, "documents": len(documents), "vocab": vocab, "eod": eod, "files": files}
    (path / "index.json").write_text(json.dumps({**index, **(changes or {})}))
    return path


def write_pair(prefix: Path, documents: list[list[int]], *, code=8, split=(), marks: MARKS | None = None) -> Path:
    """A Megatron pair. `split`: numbers of documents that are written as two sequences."""
    sequences, firsts = [], [0]
    for number, document in enumerate(documents):
        half = len(document) // 2
        sequences += [document[:half], document[half:]] if number in split else [document]
        firsts.append(len(sequences))
    kind = np.dtype({1: "<u1", 4: "<i4", 5: "<i8", 8: "<u2"}[code])
    sizes = [len(sequence) for sequence in sequences]
    pointers = [sum(sizes[:i]) * kind.itemsize for i in range(len(sizes))]
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(sizes), len(firsts))
    index = head + struct.pack(f"<{len(sizes)}i", *sizes) + struct.pack(f"<{len(sizes)}q", *pointers)
    Path(f"{prefix}.idx").write_bytes(index + struct.pack(f"<{len(firsts)}q", *firsts))
    Path(f"{prefix}.bin").write_bytes(np.array(_flat(documents), kind).tobytes())
    if marks is not None:
        Path(f"{prefix}.answers.bin").write_bytes(bytes(_flat(marks)))
    return prefix


def write_hdf5(path: Path, documents: list[list[int]], *, marks: MARKS | None = None, **options) -> Path:
    """An HDF5 file of tokens; `options` of its datasets (chunks, compression)."""
    with h5py.File(path, "w") as file:
        file.create_dataset("tokens", data=np.array(_flat(documents), "<u2"), **options)
        file.create_dataset("documents", data=_offsets(documents), **options)
        if marks is not None:
            file.create_dataset("answers", data=np.array(_flat(marks), "u1"), **options)
        file.attrs["vocab"], file.attrs["eod"] = 257, 256
    return path
