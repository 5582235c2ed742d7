"""torch tensors to a checkpoint and back. A rank passes the boxes that it owns and gets the boxes that it wants.

Names are the caller's: `model/<name>`, `optimizer/<name>/exp_avg`, `rng/<coordinate>`. Of replicas the lowest coordinate owns: the
caller leaves the others out. Small values (schedule, data position, versions) go into `state`, plain JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slurmtrain.atomic import Disk
from slurmtrain.boxes import Part
from slurmtrain.checkpoint.dtypes import carrier
from slurmtrain.checkpoint.group import Group
from slurmtrain.checkpoint.load import PartReader, find_checkpoint
from slurmtrain.checkpoint.save import Header, Piece, SaveResult, save_pieces
from slurmtrain.clock import Clock, SystemClock
from slurmtrain.rundir import RunDir
from slurmtrain.store.commit import OwnerCheck
from slurmtrain.store.manifest import Manifest

__all__ = ["SaveResult", "find_checkpoint", "load_checkpoint", "save_checkpoint"]


def save_checkpoint(
    run: RunDir,
    *,
    step: int,
    attempt: int,
    tokens: int,
    layout: Mapping[str, Any],
    entries: Sequence[tuple[Part, torch.Tensor]],
    state: Mapping[str, Any],
    group: Group,
    disk: Disk,
    owner_check: OwnerCheck,
    keep: int,
    clock: Clock | None = None,
) -> SaveResult:
    """Save, durable when it returns; called by every rank of the group.

    `entries`: the boxes that this rank owns, with the local tensors that hold them (any device; `part.region` is the slice); all
    ranks' boxes together tile every tensor. `layout`, `state`: plain JSON, equal on all ranks. `keep`: checkpoints kept. Raises on
    all ranks alike: OwnershipError, or CheckpointError naming the rank and the reason; nothing half is then visible.
    """
    header = Header(step, attempt, tokens, layout, state)
    return save_pieces(
        run, pieces_of(entries), header, group=group, disk=disk, owner_check=owner_check, keep=keep, clock=clock or SystemClock()
    )


def load_checkpoint(folder: Path, manifest: Manifest, wanted: Sequence[tuple[Part, torch.Tensor]]) -> None:
    """Fill the wanted parts of local tensors, in place, whatever layout the checkpoint was written under.

    Errors are those of `load.PartReader.fill`. Elements of a tensor that no part covers (padding) are left as they are.
    """
    with torch.no_grad(), PartReader(folder, manifest) as reader:
        for part, tensor in wanted:
            view = _region(part, tensor)
            dtype = dtype_name(tensor.dtype)
            if view.device.type == "cpu":
                reader.fill(part, dtype, _as_numpy(view))
                continue
            buffer = np.empty(part.box.shape, carrier(dtype))
            reader.fill(part, dtype, buffer)
            view.copy_(torch.from_numpy(buffer).view(tensor.dtype))


def pieces_of(entries: Sequence[tuple[Part, torch.Tensor]]) -> Iterator[Piece]:
    """The entries as numpy, one at a time; a tensor on a device is copied to memory here."""
    for part, tensor in entries:
        array = _as_numpy(_region(part, tensor).cpu())
        yield Piece(part.name, part.global_shape, part.box, dtype_name(tensor.dtype), array)


def dtype_name(dtype: torch.dtype) -> str:
    """torch.bfloat16 as "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def _region(part: Part, tensor: torch.Tensor) -> torch.Tensor:
    local = tensor.detach()
    return local[tuple(slice(a, b) for a, b in part.region)] if part.region else local


def _as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A view of a CPU tensor's memory in the carrier type; strides stay."""
    kind = carrier(dtype_name(tensor.dtype))
    return tensor.view(getattr(torch, kind.name)).numpy()
