"""Readers of a part of a matrix: ours, DCP's, and safetensors' slices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from checkpoint_state import Array, value
from checkpoint_ways import DCP, OURS, SAFETENSORS, Way
from checkpoint_world import Member
from safetensors import safe_open
from torch.distributed.checkpoint.metadata import STATE_DICT_TYPE, MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

from slurmtrain.boxes import Box, whole

MATRIX = "matrix"


class Slicer(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def way(self) -> Way:
        """How the matrix is written."""

    def read(self, member: Member, folder: Path, target: Array) -> None: ...


def box_of(side: int, dim: int) -> Box:
    """The third eighth along a dim."""
    part = side // 8
    return Box((2 * part, 0), (part, side)) if dim == 0 else Box((0, 2 * part), (side, part))


def prepare(member: Member, slicer: Slicer, folder: Path, side: int) -> None:
    shape = (side, side)
    slicer.way.write(member, folder, [Array(MATRIX, shape, whole(shape), value(MATRIX, shape, whole(shape)))])


def slice_of(member: Member, slicer: Slicer, folder: Path, side: int, dim: int) -> None:
    """Read it into memory that is there already."""
    targets = member.kept.setdefault("slices", {})
    if (side, dim) not in targets:
        box = box_of(side, dim)
        targets[side, dim] = Array(MATRIX, (side, side), box, np.zeros(box.shape, np.float32))
    slicer.read(member, folder, targets[side, dim])


def check_slice(member: Member, side: int, dim: int) -> None:
    target = member.kept["slices"][side, dim]
    if not np.array_equal(target.array, value(MATRIX, target.global_shape, target.box)):
        raise AssertionError(f"another slice along dim {dim} than was asked for")
    target.array.fill(0)


class OurSlices:
    name, way = OURS.name, OURS

    def read(self, member: Member, folder: Path, target: Array) -> None:
        OURS.read(member, folder, [target])


class _OneBox(dcp.DefaultLoadPlanner):
    """Asks for one box of one tensor, as a rank does that holds this part."""

    def __init__(self, target: Array) -> None:
        super().__init__()
        self._target = target

    def set_up_planner(self, state_dict: STATE_DICT_TYPE, metadata: Any = None, is_coordinator: bool = False) -> None:  # noqa: FBT001, FBT002 as DCP calls it
        super().set_up_planner({}, metadata, is_coordinator)

    def create_local_plan(self) -> LoadPlan:
        index, box = MetadataIndex(self._target.name, torch.Size((0, 0))), self._target.box
        here = torch.Size((0, 0))
        return LoadPlan([ReadItem(LoadItemType.TENSOR, index, here, index, torch.Size(box.offset), torch.Size(box.shape))])

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        return torch.from_numpy(self._target.array)


class DcpSlices:
    name, way = DCP.name, DCP

    def read(self, member: Member, folder: Path, target: Array) -> None:
        dcp.load({}, storage_reader=dcp.FileSystemReader(folder), planner=_OneBox(target))


class SafetensorsSlices:
    """Its slices, which are copied from the mapped file."""

    name, way = SAFETENSORS.name, SAFETENSORS

    def read(self, member: Member, folder: Path, target: Array) -> None:
        with safe_open(folder / "rank-0", "np") as file:
            rows, columns = (slice(a, a + n) for a, n in zip(target.box.offset, target.box.shape, strict=True))
            target.array[...] = file.get_slice(target.name)[rows, columns]


SLICERS: Sequence[Slicer] = (OurSlices(), DcpSlices(), SafetensorsSlices())
