"""The manifest of a checkpoint: what is in it, in which file, and the sums by which bytes are verified.

`manifest.json` is the last file written into a staging folder. Format version 1:

    {"v": 1, "step": 100, "attempt": 2, "tokens": 819200, "layout": {...Plan...}, "chunk_bytes": 8388608,
     "files": {"rank-00000.h5": {"size": 123, "xxh3_64": ["0123456789abcdef", ...]}},
     "tensors": {"model/layers.0.attention.wq.weight": {"shape": [64, 64], "dtype": "float32",
                 "boxes": [{"file": "rank-00000.h5", "dataset": "d0", "offset": [0, 0], "shape": [32, 64]}]}},
     "state": {...small JSON values: schedule, data position, versions...}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slurmtrain.boxes import Box

MANIFEST_NAME = "manifest.json"
MANIFEST_VERSION = 1
CHUNK_BYTES = 8 << 20


@dataclass(frozen=True)
class FileSum:
    """Size in bytes and the xxh3_64 of each chunk, as 16 hex digits."""

    size: int
    xxh3_64: tuple[str, ...]


@dataclass(frozen=True)
class StoredBox:
    """A box of a global tensor and where it lies."""

    box: Box
    file: str
    dataset: str


@dataclass(frozen=True)
class TensorEntry:
    """One global tensor: its whole shape, numpy-style dtype name (`bfloat16` too) and the boxes that tile it."""

    shape: tuple[int, ...]
    dtype: str
    boxes: tuple[StoredBox, ...]


@dataclass(frozen=True)
class Manifest:
    """A whole checkpoint."""

    step: int
    attempt: int
    tokens: int
    layout: Mapping[str, Any]
    files: Mapping[str, FileSum]
    tensors: Mapping[str, TensorEntry]
    state: Mapping[str, Any] = field(default_factory=dict)
    chunk_bytes: int = CHUNK_BYTES
