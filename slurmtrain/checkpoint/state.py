"""torch tensors to a checkpoint and back. A rank passes the boxes that it owns and gets the boxes that it wants.

Names are the caller's: `model/<name>`, `optimizer/<name>/exp_avg`, `rng/<coordinate>`. Of replicas the lowest coordinate owns: the
caller leaves the others out. Small values (schedule, data position, versions) go into `state`, plain JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slurmtrain.boxes import Box, Part
from slurmtrain.checkpoint.dtypes import carrier
from slurmtrain.checkpoint.group import Group
from slurmtrain.checkpoint.layout import BoxSpec
from slurmtrain.checkpoint.load import PartReader, Wish
from slurmtrain.checkpoint.saver import Header, Outcome, Terms, kinds_of
from slurmtrain.checkpoint.sync import SyncSaver
from slurmtrain.clock import Clock, SystemClock
from slurmtrain.errors import CheckpointError
from slurmtrain.rundir import RunDir
from slurmtrain.store.commit import OwnerCheck
from slurmtrain.store.manifest import Manifest
from slurmtrain.store.retention import RetentionPolicy
from slurmtrain.store.verify import Policy

Entry = tuple[Part, torch.Tensor]

BOUNCE_BYTES = 128 << 20
ALIGNMENT = 64


class TensorSource:
    """A `saver.Source`: the boxes that a rank owns, with the local tensors that hold them (any device; `part.region` is the slice).

    It refers to the tensors' memory: it may be made once and used for every save, as long as the tensors are the same objects. Raises
    CheckpointError where two entries disagree on shape or type of a tensor.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.kinds = kinds_of((part.name, part.global_shape, dtype_name(tensor.dtype)) for part, tensor in entries)
        held = [(part, tensor) for part, tensor in entries if part.box.volume]
        self.specs = tuple(BoxSpec(part.name, part.global_shape, part.box, dtype_name(tensor.dtype)) for part, tensor in held)
        self._views = [_bits(_region(part, tensor)) for part, tensor in held]

    def fetch(self, index: int) -> np.ndarray:
        return self._views[index].cpu().numpy()

    def copy_to(self, index: int, target: np.ndarray) -> None:
        """From a device on the stream that is current; to memory that is pinned the copy goes on when this returns."""
        view = self._views[index]
        if _in_memory(view):
            np.copyto(target, view.numpy())  # half as fast again as torch's own copy, on one thread
        else:
            torch.from_numpy(target).copy_(view, non_blocking=True)

    def settle(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()


def pinned(memory: np.ndarray) -> Callable[[], None]:
    """Pin memory for copies from a CUDA device; what takes it back. Raises RuntimeError with CUDA's own words."""
    runtime: Any = torch.cuda.cudart()
    at = memory.ctypes.data
    torch.cuda.check_error(runtime.cudaHostRegister(at, memory.nbytes, 0))

    def release() -> None:
        torch.cuda.check_error(runtime.cudaHostUnregister(at))

    return release


def save_checkpoint(
    run: RunDir,
    *,
    step: int,
    attempt: int,
    tokens: int,
    layout: Mapping[str, Any],
    entries: Sequence[Entry],
    state: Mapping[str, Any],
    group: Group,
    owner_check: OwnerCheck,
    keep: int,
    clock: Clock | None = None,
) -> Outcome:
    """One save, durable when it returns; called by every rank of the group. Values that are not finite are saved as well.

    `entries`: of all ranks together they tile every tensor. `layout`, `state`: plain JSON, equal on all ranks. `keep`: checkpoints kept.
    Raises on all ranks alike: OwnershipError, or CheckpointError naming the rank and the reason; nothing half is then visible.
    """
    clock = clock or SystemClock()
    terms = Terms(run, RetentionPolicy(keep), allow_nonfinite=True)
    saver = SyncSaver(terms, group, clock=clock, owner_check=owner_check)
    outcome = saver.begin(Header(step, attempt, tokens, clock.time(), layout, state), TensorSource(entries))
    if not outcome.ok:
        raise CheckpointError(outcome.error)
    return outcome


def load_checkpoint(
    folder: Path, manifest: Manifest, wanted: Iterable[Entry], policy: Policy = "full", turn: tuple[int, int] = (0, 1)
) -> None:
    """Fill the wanted parts of local tensors, in place, whatever layout the checkpoint was written under.

    Errors, and `turn` (rank and size where all ranks load at once): those of `load.PartReader`. Elements of a tensor that no part covers
    (padding) are left as they are. What lies on a device is filled through BOUNCE_BYTES of memory.
    """
    with torch.no_grad(), PartReader(folder, manifest, policy, turn) as reader:
        far: list[Entry] = []
        near: list[Wish] = []
        for part, tensor in wanted:
            view = _region(part, tensor)
            if _in_memory(view):
                near.append(Wish(part, dtype_name(view.dtype), _as_numpy(view)))
            elif view.numel():
                far += _split(part, view, BOUNCE_BYTES)
        reader.fill_all(near)
        if far:
            _bounce(reader, far)


def _bounce(reader: PartReader, entries: Sequence[Entry]) -> None:
    """Fill tensors on a device, of BOUNCE_BYTES each at most: as many at a time as there is room for on the way."""
    cuda = entries[0][1].is_cuda
    buffer = torch.empty(BOUNCE_BYTES, dtype=torch.uint8, pin_memory=cuda)
    for batch in _batches(entries):
        places = [buffer[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape) for at, _, tensor in batch]
        reader.fill_all(Wish(part, dtype_name(place.dtype), _as_numpy(place)) for (_, part, _), place in zip(batch, places, strict=True))
        for (_, _, tensor), place in zip(batch, places, strict=True):
            tensor.copy_(place, non_blocking=True)
        if cuda:
            torch.cuda.current_stream().synchronize()  # the buffer is filled again


def _batches(entries: Iterable[Entry]) -> Iterator[list[tuple[int, Part, torch.Tensor]]]:
    """Entries that fit into BOUNCE_BYTES together, each with its place there in bytes."""
    batch: list[tuple[int, Part, torch.Tensor]] = []
    at = 0
    for part, tensor in entries:
        if at + tensor.nbytes > BOUNCE_BYTES:
            yield batch
            batch, at = [], 0
        batch.append((at, part, tensor))
        at += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    yield batch


def _split(part: Part, view: torch.Tensor, most: int) -> Iterator[Entry]:
    """The part as parts of at most so many bytes, one after another in row-major order."""
    if view.nbytes <= most:
        yield part, view
        return
    dim = next(i for i, extent in enumerate(view.shape) if extent > 1)
    count = max(1, most // (view.nbytes // view.shape[dim]))
    for start in range(0, view.shape[dim], count):
        piece = view.narrow(dim, start, min(count, view.shape[dim] - start))
        offset = tuple(at + (start if i == dim else 0) for i, at in enumerate(part.box.offset))
        box = Box(offset, tuple(piece.shape))
        yield from _split(Part(part.name, part.global_shape, box, tuple((0, n) for n in box.shape)), piece, most)


def _in_memory(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"


def dtype_name(dtype: torch.dtype) -> str:
    """torch.bfloat16 as "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def _region(part: Part, tensor: torch.Tensor) -> torch.Tensor:
    local = tensor.detach()
    return local if local.shape == part.box.shape else local[tuple(slice(a, b) for a, b in part.region)]


def _as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A view of a CPU tensor's memory in the carrier type; strides stay."""
    return _bits(tensor).numpy()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """A view of a tensor's memory in the carrier type; strides stay."""
    return tensor.view(getattr(torch, carrier(dtype_name(tensor.dtype)).name))
