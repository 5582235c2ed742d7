"""The manifest of a checkpoint: what is in it, in which file and at which byte, and the sums by which bytes are verified.

`manifest.json` is the last file written into a staging folder. One line of JSON, format version 2 (`docs/checkpoint.md`):

    {"v":2,"step":100,"attempt":2,"tokens":819200,"t":1764444444.5,"layout":{...Plan...},"chunk_bytes":8388608,
     "files":{"rank-00000.h5":[123456,"0123456789abcdef..."]},
     "tensors":{"model/layers.0.attention.q.weight":["float32",[64,64],[[0,"model/...@0,0",null,4096,0,[0,0],[32,64]],...]]},
     "state":{...small JSON values: schedule, data position, versions...},"xxh3_64":"0123456789abcdef"}

A file: its size and the xxh3_64 of each of its chunks, 16 hex digits each, joined. A tensor: element type, global shape, boxes. A box:
number of its file in their order, dataset, `start`, `at`, `panel`, offset, shape.

- `start` null: the dataset is the box. A number: the box lies in a one-dimensional dataset that several small tensors share, in
  row-major order from that element on.
- `at`: the byte of the file at which its first element lies; its elements follow without a gap.
- `panel` 0: row-major order. A number: the two-dimensional box lies as panels of so many columns, one after another, each whole panel
  in row-major order (in HDF5: a chunked dataset); so a slice of rows and a slice of columns are both long runs of bytes.

The last key is the xxh3_64 of the line without it, so that a changed digit in the manifest is found as well. Version 1 is read, too:
it has objects in place of these lists, no `t`, and no `at`, which `checkpoint.located` looks up in the files.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, overload

import xxhash

from slurmtrain.boxes import Box, intersect
from slurmtrain.errors import CheckpointError, CorruptCheckpointError, one_line
from slurmtrain.store import plain

MANIFEST_NAME = "manifest.json"
MANIFEST_VERSION = 2
CHUNK_BYTES = 8 << 20
SUM_DIGITS = 16
_KEYS_1 = {"v", "step", "attempt", "tokens", "layout", "chunk_bytes", "files", "tensors", "state"}
_KEYS = {1: _KEYS_1, 2: _KEYS_1 | {"t"}}
_SEAL = re.compile(rb',"xxh3_64":"([0-9a-f]{16})"\}\n')
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed")
_SEAL_BYTES = len(b',"xxh3_64":"0123456789abcdef"}\n')
MOST_CHUNK_BYTES = 1 << 30
"""A chunk is read into memory as a whole."""
_WRONG = (LookupError, TypeError, ValueError, AssertionError, AttributeError)
"""What a value raises that is not of the form it should be."""


class Sums(Sequence[str]):
    """Sums of 16 digits each as one text: of 16 TB there are two million. Equal to any sequence of the same texts."""

    def __init__(self, digits: str) -> None:
        if len(digits) % SUM_DIGITS:
            raise ValueError(f"sums are {SUM_DIGITS} digits each")
        self.digits = digits

    def __len__(self) -> int:
        return len(self.digits) // SUM_DIGITS

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...

    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        start = range(0, len(self.digits), SUM_DIGITS)[index]
        return self.digits[start : start + SUM_DIGITS]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Sums):
            return self.digits == other.digits
        return isinstance(other, tuple | list) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


@dataclass(frozen=True)
class FileSum:
    """Size in bytes and the xxh3_64 of each chunk, as 16 hex digits."""

    size: int
    xxh3_64: Sequence[str]


@dataclass(frozen=True)
class StoredBox:
    """A box of a global tensor and where it lies.

    `start` None: the dataset is the box; a number: it lies in a one-dimensional dataset from that element on. `at`: the byte of the
    file where it begins, None in a manifest of version 1 until `checkpoint.located`; `panel`: columns of its panels, 0: none.
    """

    box: Box
    file: str
    dataset: str
    start: int | None = None
    at: int | None = None
    panel: int = 0


@dataclass(frozen=True)
class TensorEntry:
    """One global tensor: its whole shape, numpy-style dtype name (`bfloat16` too) and the boxes that tile it."""

    shape: tuple[int, ...]
    dtype: str
    boxes: tuple[StoredBox, ...]


class Tensors(Mapping[str, TensorEntry]):
    """The index, decoded tensor by tensor when it is asked for: a rank wants few of the many. Raises CorruptCheckpointError then."""

    def __init__(self, raw: dict[str, Any], files: Mapping[str, FileSum], version: int, where: str) -> None:
        self.raw, self._files, self._names = raw, files, tuple(files)
        self.version, self._where = version, where
        self._seen: dict[str, TensorEntry] = {}

    def __getitem__(self, name: str) -> TensorEntry:
        if name not in self._seen:
            self._seen[name] = self._decoded(name, self.raw[name])
        return self._seen[name]

    def kind(self, name: str) -> tuple[tuple[int, ...], str]:
        """Shape and element type of a tensor, its boxes not looked at. Raises KeyError, CorruptCheckpointError."""
        raw = self.raw[name]
        try:
            dtype, shape = (raw["dtype"], raw["shape"]) if self.version == 1 else (raw[0], raw[1])
            return plain.numbers(shape), plain.type_name(dtype)
        except _WRONG as error:
            raise self._corrupt(name, error) from error

    def near(self, name: str, box: Box) -> tuple[StoredBox, ...]:
        """The boxes of a tensor that share elements with `box`; of thousands the others cost little.

        Raises KeyError, CorruptCheckpointError.
        """
        raw = self.raw[name]
        try:
            if self.version == 1 or name in self._seen:
                return tuple(one for one in self[name].boxes if intersect(one.box, box) is not None)
            rows = raw[2]
            for dim, (start, extent) in enumerate(zip(box.offset, box.shape, strict=True)):
                stop = start + extent
                rows = [row for row in rows if row[5][dim] < stop and row[5][dim] + row[6][dim] > start]
            return tuple(_box_2(row, self._names) for row in rows)
        except _WRONG as error:
            raise self._corrupt(name, error) from error

    def sole(self, name: str, shape: tuple[int, ...], dtype: str) -> tuple[str, int] | None:
        """File and byte of a tensor of this shape and type that lies in one box, in row-major order; None for any other, or none.

        A checkpoint may have 100,000 small tensors: this is `near` without the cost of a `StoredBox`.
        """
        try:
            have, sizes, ((number, _, _, at, panel, offset, extents),) = self.raw[name]
            if (
                have == dtype
                and sizes == extents
                and tuple(sizes) == shape
                and not panel
                and not any(offset)
                and len(offset) == len(extents)
            ):
                return self._names[plain.number(number)], plain.number(at)
        except (KeyError, IndexError, TypeError, ValueError):  # `near` has words for it
            return None
        return None

    def __iter__(self) -> Iterator[str]:
        return iter(self.raw)

    def __len__(self) -> int:
        return len(self.raw)

    def __contains__(self, name: object) -> bool:
        return name in self.raw

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment]

    def _decoded(self, name: str, raw: Any) -> TensorEntry:
        try:
            return _entry_1(raw, self._files) if self.version == 1 else _entry_2(raw, self._names)
        except _WRONG as error:
            raise self._corrupt(name, error) from error

    def _corrupt(self, name: str, error: Exception) -> CorruptCheckpointError:
        return CorruptCheckpointError(f"{self._where}: {name}: not an entry of the index: {_words(error)}")


@dataclass(frozen=True)
class Manifest:
    """A whole checkpoint. `t`: when it was written, unix seconds; 0 where version 1 does not say."""

    step: int
    attempt: int
    tokens: int
    layout: Mapping[str, Any]
    files: Mapping[str, FileSum]
    tensors: Mapping[str, TensorEntry]
    state: Mapping[str, Any] = field(default_factory=dict)
    chunk_bytes: int = CHUNK_BYTES
    t: float = 0.0

    @property
    def total_bytes(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(one.size for one in self.files.values())

    def to_json(self) -> bytes:
        """The bytes of `manifest.json`. Raises ValueError or TypeError where `state` or `layout` is not plain JSON.

        Made tensor by tensor: one call for a large index would hold the interpreter's lock for seconds while a thread trains.
        """
        plain.names(self.tensors)
        number = {name: i for i, name in enumerate(self.files)}
        head = {
            "v": MANIFEST_VERSION,
            "step": self.step,
            "attempt": self.attempt,
            "tokens": self.tokens,
            "t": self.t,
            "layout": dict(self.layout),
            "chunk_bytes": self.chunk_bytes,
            "files": {name: [one.size, _digits(one.xxh3_64)] for name, one in self.files.items()},
        }
        encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
        tensors = (
            f"{encode(name)}:{encode([entry.dtype, entry.shape, [_row(one, number) for one in entry.boxes]])}"
            for name, entry in self.tensors.items()
        )
        text = f'{encode(head)[:-1]},"tensors":{{{",".join(tensors)}}},"state":{encode(dict(self.state))}}}'
        body = text.encode()
        return body[:-1] + b',"xxh3_64":"' + xxhash.xxh3_64_hexdigest(body).encode() + b'"}\n'

    @classmethod
    def from_json(cls, data: bytes, where: str = MANIFEST_NAME) -> Manifest:
        """Read the bytes of `manifest.json`.

        Raises CorruptCheckpointError for bytes that are not a whole manifest, CheckpointError for a newer version. What is wrong in
        one tensor's entry is told when it is looked at (`store.verify.index_problems` looks at all).
        """
        raw = _unseal(data, where)
        try:
            return _manifest_from_raw(raw, where)
        except _WRONG as error:
            raise CorruptCheckpointError(f"{where}: not a manifest: {_words(error)}") from error


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep Python's collector from running within: it would walk through all objects of a trainer again and again while many are made
    that all stay.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _unseal(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object under its sum, of a version that this release reads."""
    seal = _SEAL.fullmatch(data[-_SEAL_BYTES:])
    try:
        with uncollected():
            raw = json.loads(data, parse_constant=_no_number)
        if _SURROGATE.search(data):
            json.dumps(raw, ensure_ascii=False).encode()  # halves of pairs cannot be printed
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"{where}: {len(data)} bytes that are not JSON: {error}") from error
    version = raw.get("v") if isinstance(raw, dict) else None
    if type(version) is int and version > MANIFEST_VERSION:
        raise CheckpointError(f"{where}: format version {version}; this release reads up to {MANIFEST_VERSION}: use a newer slurmtrain")
    if seal is None or type(version) is not int or version not in _KEYS:
        raise CorruptCheckpointError(f"{where}: not a manifest of version {MANIFEST_VERSION} with its sum")
    if xxhash.xxh3_64_hexdigest(data[: -len(seal[0])] + b"}") != seal[1].decode():
        raise CorruptCheckpointError(f"{where}: its bytes are not those that were written (sum differs)")
    del raw["xxh3_64"]
    return dict(raw)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(str(error))}"


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def _digits(sums: Sequence[str]) -> str:
    return sums.digits if isinstance(sums, Sums) else "".join(sums)


def _row(one: StoredBox, number: Mapping[str, int]) -> list[Any]:
    return [number[one.file], one.dataset, one.start, one.at, one.panel, one.box.offset, one.box.shape]


def _manifest_from_raw(raw: dict[str, Any], where: str) -> Manifest:
    version = raw["v"]
    if raw.keys() != _KEYS[version]:
        raise ValueError(f"keys {sorted(raw.keys() ^ _KEYS[version])} are unknown or missing")
    for key in ("files", "tensors", "layout", "state"):
        if not isinstance(raw[key], dict):
            raise TypeError(f"{key} is not an object")
    plain.names(raw["tensors"])
    read = _sums_1 if version == 1 else _sums_2
    files = {plain.file_name(name, MANIFEST_NAME): read(one) for name, one in raw["files"].items()}
    return Manifest(
        step=plain.number(raw["step"]),
        attempt=plain.number(raw["attempt"]),
        tokens=plain.number(raw["tokens"]),
        layout=raw["layout"],
        files=files,
        tensors=Tensors(raw["tensors"], files, version, where),
        state=raw["state"],
        chunk_bytes=plain.number(raw["chunk_bytes"], least=1, most=MOST_CHUNK_BYTES),
        t=plain.seconds(raw.get("t", 0.0)),
    )


def _sums_1(raw: dict[str, Any]) -> FileSum:
    return FileSum(plain.number(raw["size"]), tuple(plain.text(s) for s in raw["xxh3_64"]))


def _sums_2(raw: list[Any]) -> FileSum:
    size, digits = raw
    return FileSum(plain.number(size), Sums(plain.text(digits)))


def _entry_1(raw: dict[str, Any], files: Mapping[str, FileSum]) -> TensorEntry:
    boxes = tuple(_box_1(one) for one in raw["boxes"])
    for one in boxes:
        if one.file not in files:
            raise ValueError(f"a box lies in {one.file}, which is not among the files")
    return TensorEntry(plain.numbers(raw["shape"]), plain.type_name(raw["dtype"]), boxes)


def _box_1(raw: dict[str, Any]) -> StoredBox:
    start = None if raw.get("start") is None else plain.number(raw["start"])
    return StoredBox(
        Box(plain.numbers(raw["offset"]), plain.numbers(raw["shape"])),
        plain.file_name(raw["file"], MANIFEST_NAME),
        plain.name(raw["dataset"]),
        start,
    )


def _entry_2(raw: list[Any], names: tuple[str, ...]) -> TensorEntry:
    dtype, shape, rows = raw
    return TensorEntry(plain.numbers(shape), plain.type_name(dtype), tuple(_box_2(row, names) for row in rows))


def _box_2(raw: list[Any], names: tuple[str, ...]) -> StoredBox:
    number, dataset, start, at, panel, offset, shape = raw
    if plain.number(number) >= len(names):
        raise ValueError(f"a box lies in file {number} of {len(names)}")
    box = Box(plain.numbers(offset), plain.numbers(shape))
    if plain.number(panel) and (len(box.shape) != 2 or box.shape[1] % panel):
        raise ValueError(f"panels of {panel} columns in a box of shape {box.shape}")
    return StoredBox(box, names[number], plain.name(dataset), None if start is None else plain.number(start), plain.number(at), panel)
