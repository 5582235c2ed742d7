"""A checkpoint as PyTorch's Distributed Checkpoint: its files and its metadata, without its tensors in memory.

A folder of `__0_N.distcp`, each a row of tensors as torch.save writes them, and `.metadata`, a pickled object of torch's own classes that
says which box of which tensor lies at which byte. torch's `save` would want all tensors first, and holds those of a whole file while it
writes them; here each box is read, verified, written and forgotten. Names: `dcp_names`.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from slurmtrain.boxes import Box, whole
from slurmtrain.checkpoint.cuts import Sizing, runs_of_rows
from slurmtrain.checkpoint.dcp_metadata import METADATA_NAME
from slurmtrain.checkpoint.dcp_names import HEADER, from_dcp, path_of, steps_of
from slurmtrain.checkpoint.dtypes import carrier
from slurmtrain.checkpoint.layout import BoxSpec
from slurmtrain.checkpoint.load import PartReader
from slurmtrain.checkpoint.making import Advance, bytes_of, in_turn, kinds_of
from slurmtrain.checkpoint.newfolder import new_folder
from slurmtrain.errors import CheckpointError
from slurmtrain.store.manifest import Manifest
from slurmtrain.syscalls import SYSTEM, Syscalls, pwrite_all, write_new

_VERSION = "1.0.0"
"""Of torch's format; what its FileSystemWriter writes."""
BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class Written:
    """What was written: number of tensors, of files, and bytes of the tensors."""

    tensors: int
    files: int
    bytes: int


@dataclass(frozen=True)
class _Item:
    """A box to be written under a name: of the checkpoint (`spec`), or a value made here."""

    name: str
    shape: tuple[int, ...]
    box: Box
    dtype: str
    spec: BoxSpec | None = None
    value: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        return self.box.volume * carrier(self.dtype).itemsize


def to_dcp(
    folder: Path, manifest: Manifest, out: Path, sizing: Sizing, *, calls: Syscalls = SYSTEM, advance: Advance = lambda _: None
) -> Written:
    """Write the checkpoint as the new folder `out`, for torch.distributed.checkpoint.load.

    In memory are two items of at most `cuts.MOST_BOX_BYTES` each. Raises CorruptCheckpointError naming tensor and file where a byte
    differs from what was written, UserError where `out` is taken or cannot be made, CheckpointError where the disk refuses.
    """
    paths = {name: path_of(name) for name in manifest.tensors}
    if strange := next((name for name, path in paths.items() if from_dcp(".".join(path)) != name), None):
        raise CheckpointError(f"{folder}: {strange!r} has no name in PyTorch's format that would lead back to it")
    kinds = kinds_of(manifest)
    items = list(_values(manifest))
    most = sizing.most_box(bytes_of(kinds))
    for name, (shape, dtype) in kinds.items():
        boxes = runs_of_rows(whole(shape), carrier(dtype).itemsize, most)
        items += [_Item(".".join(paths[name]), shape, box, dtype, BoxSpec(name, shape, box, dtype)) for box in boxes]
    files = [[items[i] for i in numbers] for numbers in sizing.deal([item.nbytes for item in items])]
    there = {item.name for item in items}
    tree = {name: path for path in [*paths.values(), (HEADER,), *steps_of(manifest.tensors)] if (name := ".".join(path)) in there}
    with new_folder(out, calls=calls) as staging, PartReader(folder, manifest) as reader:
        contents = in_turn(reader, [item.spec for one in files for item in one if item.spec is not None])
        places: dict[MetadataIndex, _StorageInfo] = {}
        for number, some in enumerate(files):
            places |= _write_file(calls, staging / f"__0_{number}.distcp", some, contents, advance)
        metadata = Metadata(_index(items), planner_data=tree, storage_data=places, version=_VERSION)
        write_new(calls, staging / METADATA_NAME, pickle.dumps(metadata, protocol=4))
    return Written(len(kinds), len(files), bytes_of(kinds))


def _values(manifest: Manifest) -> Iterator[_Item]:
    """What torch has as tensors and we as plain values: the header, and how many updates there were."""
    header = replace(manifest, files={}, tensors={}).to_json()
    yield _value((HEADER,), torch.frombuffer(bytearray(header), dtype=torch.uint8))
    updates = manifest.state.get("optimizer_updates")
    if isinstance(updates, int):
        for path in steps_of(manifest.tensors):
            yield _value(path, torch.tensor(float(updates), dtype=torch.float32))


def _value(path: tuple[str, ...], value: torch.Tensor) -> _Item:
    shape = tuple(value.shape)
    return _Item(".".join(path), shape, whole(shape), str(value.dtype).removeprefix("torch."), value=value)


def _index(items: Sequence[_Item]) -> dict[str, STORAGE_TYPES]:
    """Type, shape and boxes of each tensor, as torch has them."""
    index: dict[str, STORAGE_TYPES] = {}
    for item in items:
        if item.name not in index:
            index[item.name] = TensorStorageMetadata(TensorProperties(getattr(torch, item.dtype)), torch.Size(item.shape), [])
        tensor = index[item.name]
        assert isinstance(tensor, TensorStorageMetadata)
        tensor.chunks.append(ChunkStorageMetadata(torch.Size(item.box.offset), torch.Size(item.box.shape)))
    return index


def _write_file(
    calls: Syscalls, path: Path, items: Sequence[_Item], contents: Iterator[np.ndarray], advance: Advance
) -> dict[MetadataIndex, _StorageInfo]:
    """Write items one after another; durable when it returns. Where each lies."""
    places = {}
    with _New(calls, path) as raw:
        file = io.BufferedWriter(raw, BUFFER_BYTES)
        for item in items:
            start = file.tell()
            tensor = item.value if item.value is not None else tensor_of(next(contents), item.dtype)
            torch.save(tensor, file)
            places[MetadataIndex(item.name, item.box.offset)] = _StorageInfo(path.name, start, file.tell() - start)
            advance(tensor.nbytes)
        file.flush()
        raw.fsync()
    return places


class _New(io.RawIOBase):
    """A new file, written through the door to system calls."""

    def __init__(self, calls: Syscalls, path: Path) -> None:
        self._calls, self._fd = calls, calls.create(path)
        self._at = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        pwrite_all(self._calls, self._fd, view, self._at)
        self._calls.settle(self._fd, self._at, len(view))
        self._at += len(view)
        return len(view)

    def fsync(self) -> None:
        self._calls.fsync(self._fd)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._calls.close(self._fd)


def tensor_of(array: np.ndarray, dtype: str) -> torch.Tensor:
    """An array in the carrier of a type as a tensor of that type, over the same memory."""
    return torch.from_numpy(array).view(getattr(torch, dtype))


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """The other way round; strides stay."""
    kind = carrier(str(tensor.dtype).removeprefix("torch."))
    return tensor.view(getattr(torch, kind.name)).numpy()
