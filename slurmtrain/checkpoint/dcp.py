"""A checkpoint as PyTorch's Distributed Checkpoint, by torch's own `save`, in one process and without its tensors in memory.

torch plans a save from a state dict, then asks its planner for each item when it is to be written. So the planner here has boxes in
place of tensors, and reads each out of the checkpoint, verified, when it is asked; the writer goes through the files one after the
other and holds one item (torch's own holds a file's, to be able to write safetensors). Names: `dcp_names`.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

import numpy as np
import torch
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

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
    """Write the checkpoint (`manifest`: with every box's place) as the new folder `out`, for torch.distributed.checkpoint.load.

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
    tree = {".".join(path): path for path in [*paths.values(), (HEADER,), *steps_of(manifest.tensors)]}
    with new_folder(out, calls=calls) as staging, PartReader(folder, manifest) as reader:
        planner = _Planner([item for one in files for item in one], tree, reader)
        writer = _Writer(staging, [len(one) for one in files], calls, advance)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*in a single process.*")
            save({}, storage_writer=writer, planner=planner, no_dist=True)
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


class _Planner(SavePlanner):
    """Plans boxes that are nowhere in memory; `resolve_data` reads them in the order of the plan."""

    def __init__(self, items: Sequence[_Item], tree: dict[str, tuple[str, ...]], reader: PartReader) -> None:
        self._items, self._tree = items, tree
        self._contents = in_turn(reader, [item.spec for item in items if item.spec is not None])

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 torch's
        return

    def create_local_plan(self) -> SavePlan:
        return SavePlan([_write_item(item) for item in self._items])

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        plans, metadata = create_default_global_save_plan(all_plans)
        return plans, replace(metadata, planner_data=self._tree)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        self._left = iter(self._items)
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        item = next(self._left)
        assert (item.name, item.box.offset) == (write_item.index.fqn, tuple(write_item.index.offset or ())), "items are read in turn"
        return item.value if item.value is not None else tensor_of(next(self._contents), item.dtype)


def _write_item(item: _Item) -> WriteItem:
    offset, size = torch.Size(item.box.offset), torch.Size(item.box.shape)
    kind = WriteItemType.TENSOR if item.box == whole(item.shape) else WriteItemType.SHARD
    data = TensorWriteData(ChunkStorageMetadata(offset, size), TensorProperties(getattr(torch, item.dtype)), torch.Size(item.shape))
    return WriteItem(MetadataIndex(item.name, offset), kind, tensor_data=data)


class _Writer(StorageWriter):
    """Files named as torch names those of one rank; `counts`: how many of the plan's items go into each."""

    def __init__(self, folder: Path, counts: Sequence[int], calls: Syscalls, advance: Advance) -> None:
        self._folder, self._counts, self._calls, self._advance = folder, counts, calls, advance

    def reset(self, checkpoint_id: Any = None) -> None:  # noqa: ARG002 torch's
        return

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002, FBT001 torch's
        return

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        items = iter(plan.items)
        results = []
        for number, count in enumerate(self._counts):
            name = f"__0_{number}.distcp"
            with _Stream(self._calls, self._folder / name) as stream:
                for _ in range(count):
                    item, start = next(items), stream.position
                    tensor = planner.resolve_data(item)
                    assert isinstance(tensor, torch.Tensor)
                    torch.save(tensor, cast(IO[bytes], stream))
                    length = stream.position - start
                    results.append(WriteResult(item.index, length, _StorageInfo(name, start, length)))
                    self._advance(tensor.nbytes)
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        metadata.version = _VERSION
        metadata.storage_data = {one.index: one.storage_data for some in results for one in some}
        write_new(self._calls, self._folder / METADATA_NAME, pickle.dumps(metadata))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:  # noqa: ARG003 torch's
        return True


class _Stream(io.RawIOBase):
    """A new file that torch writes to, through the door to system calls; durable when it is closed well."""

    def __init__(self, calls: Syscalls, path: Path) -> None:
        self._calls, self._fd = calls, calls.create(path)
        self.position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        pwrite_all(self._calls, self._fd, view, self.position)
        self._calls.settle(self._fd, self.position, len(view))
        self.position += len(view)
        return len(view)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._calls.fsync(self._fd)
        self.close()

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
