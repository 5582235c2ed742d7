"""The manifest of a checkpoint: what is in it, in which file, and the sums by which bytes are verified.

`manifest.json` is the last file written into a staging folder. One line of JSON, format version 1:

    {"v":1,"step":100,"attempt":2,"tokens":819200,"layout":{...Plan...},"chunk_bytes":8388608,
     "files":{"rank-00000.h5":{"size":123,"xxh3_64":["0123456789abcdef",...]}},
     "tensors":{"model/layers.0.attention.wq.weight":{"shape":[64,64],"dtype":"float32",
                "boxes":[{"file":"rank-00000.h5","dataset":"d000001","offset":[0,0],"shape":[32,64]}]}},
     "state":{...small JSON values: schedule, data position, versions...},"xxh3_64":"0123456789abcdef"}

A box with `start` lies in a one-dimensional dataset that several small tensors share, in row-major order from that element on.
The last key is the xxh3_64 of the line without it, so that a changed digit in the manifest is found as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import xxhash

from slurmtrain.boxes import Box
from slurmtrain.errors import CheckpointError, CorruptCheckpointError

MANIFEST_NAME = "manifest.json"
MANIFEST_VERSION = 1
CHUNK_BYTES = 8 << 20
_KEYS = {"v", "step", "attempt", "tokens", "layout", "chunk_bytes", "files", "tensors", "state"}
_SEAL = re.compile(rb',"xxh3_64":"([0-9a-f]{16})"\}\n')
_SEAL_BYTES = len(b',"xxh3_64":"0123456789abcdef"}\n')
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class FileSum:
    """Size in bytes and the xxh3_64 of each chunk, as 16 hex digits."""

    size: int
    xxh3_64: tuple[str, ...]


@dataclass(frozen=True)
class StoredBox:
    """A box of a global tensor and where it lies.

    `start` None: the dataset is the box. A number: the box lies in the one-dimensional dataset from that element on.
    """

    box: Box
    file: str
    dataset: str
    start: int | None = None


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

    @property
    def total_bytes(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(one.size for one in self.files.values())

    def to_json(self) -> bytes:
        """The bytes of `manifest.json`. Raises ValueError or TypeError where `state` or `layout` is not plain JSON."""
        raw = {
            "v": MANIFEST_VERSION,
            "step": self.step,
            "attempt": self.attempt,
            "tokens": self.tokens,
            "layout": dict(self.layout),
            "chunk_bytes": self.chunk_bytes,
            "files": {name: {"size": one.size, "xxh3_64": list(one.xxh3_64)} for name, one in self.files.items()},
            "tensors": {name: _tensor_to_raw(entry) for name, entry in self.tensors.items()},
            "state": dict(self.state),
        }
        body = json.dumps(raw, separators=(",", ":"), allow_nan=False).encode()
        return body[:-1] + b',"xxh3_64":"' + xxhash.xxh3_64_hexdigest(body).encode() + b'"}\n'

    @classmethod
    def from_json(cls, data: bytes, where: str = MANIFEST_NAME) -> Manifest:
        """Read the bytes of `manifest.json`.

        Raises CorruptCheckpointError for bytes that are not a whole manifest, CheckpointError for a newer version.
        """
        raw = _unseal(data, where)
        try:
            return _manifest_from_raw(raw)
        except (KeyError, TypeError, ValueError, AssertionError, AttributeError) as error:
            raise CorruptCheckpointError(f"{where}: not a manifest: {type(error).__name__}: {error}") from error


def _unseal(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object under its sum, of a version that this release reads."""
    seal = _SEAL.fullmatch(data[-_SEAL_BYTES:])
    try:
        raw = json.loads(data)
    except ValueError as error:
        raise CorruptCheckpointError(f"{where}: {len(data)} bytes that are not JSON: {error}") from error
    version = raw.get("v") if isinstance(raw, dict) else None
    if type(version) is int and version > MANIFEST_VERSION:
        raise CheckpointError(f"{where}: format version {version}; this release reads up to {MANIFEST_VERSION}: use a newer slurmtrain")
    if seal is None or version != MANIFEST_VERSION:
        raise CorruptCheckpointError(f"{where}: not a manifest of version {MANIFEST_VERSION} with its sum")
    if xxhash.xxh3_64_hexdigest(data[: -len(seal[0])] + b"}") != seal[1].decode():
        raise CorruptCheckpointError(f"{where}: its bytes are not those that were written (sum differs)")
    del raw["xxh3_64"]
    return dict(raw)


def _tensor_to_raw(entry: TensorEntry) -> dict[str, Any]:
    return {"shape": list(entry.shape), "dtype": entry.dtype, "boxes": [_box_to_raw(one) for one in entry.boxes]}


def _box_to_raw(one: StoredBox) -> dict[str, Any]:
    raw: dict[str, Any] = {"file": one.file, "dataset": one.dataset, "offset": list(one.box.offset), "shape": list(one.box.shape)}
    return raw if one.start is None else {**raw, "start": one.start}


def _manifest_from_raw(raw: dict[str, Any]) -> Manifest:
    if raw.keys() != _KEYS:
        raise ValueError(f"keys {sorted(raw.keys() ^ _KEYS)} are unknown or missing")
    files = {_file_name(name): FileSum(_int(one["size"]), tuple(_text(s) for s in one["xxh3_64"])) for name, one in raw["files"].items()}
    return Manifest(
        step=_int(raw["step"]),
        attempt=_int(raw["attempt"]),
        tokens=_int(raw["tokens"]),
        layout=dict(raw["layout"]),
        files=files,
        tensors={name: _tensor_from_raw(one, files) for name, one in raw["tensors"].items()},
        state=dict(raw["state"]),
        chunk_bytes=_int(raw["chunk_bytes"], least=1),
    )


def _tensor_from_raw(raw: dict[str, Any], files: Mapping[str, FileSum]) -> TensorEntry:
    boxes = tuple(_box_from_raw(one) for one in raw["boxes"])
    for one in boxes:
        if one.file not in files:
            raise ValueError(f"a box lies in {one.file}, which is not among the files")
    return TensorEntry(_ints(raw["shape"]), _text(raw["dtype"]), boxes)


def _box_from_raw(raw: dict[str, Any]) -> StoredBox:
    start = None if raw.get("start") is None else _int(raw["start"])
    return StoredBox(Box(_ints(raw["offset"]), _ints(raw["shape"])), _file_name(raw["file"]), _text(raw["dataset"]), start)


def _int(value: Any, least: int = 0) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"{value!r} is not a whole number from {least} on")
    return value


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(_int(value) for value in values)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _file_name(value: Any) -> str:
    if not _FILE_NAME.fullmatch(_text(value)):
        raise ValueError(f"{value!r} is not the name of a file beside the manifest")
    return str(value)
