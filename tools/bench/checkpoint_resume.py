"""The rows of a resume: ranks that want other parts than any rank has written; how far their memory grows, and how long it takes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from checkpoint_ours import OurResume
from checkpoint_results import Goal, Row, rows_of
from checkpoint_rows import Bench, size_name, turns
from checkpoint_state import Array, Tensors, made, value
from checkpoint_ways import DCP, Plain, Way
from checkpoint_world import Growth, Member, World
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

BESIDE_THE_SHARD = 256 << 20
WARM_UP = Tensors(1, (64, 64))


class DcpSharded(Plain):
    """DCP with DTensors: rows of a matrix are saved, columns are loaded."""

    name = DCP.name

    def write(self, member: Member, folder: Path, state: Sequence[Array]) -> None:
        dcp.save(self._named(member, state), storage_writer=dcp.FileSystemWriter(folder))

    def read(self, member: Member, folder: Path, targets: Sequence[Array]) -> None:
        dcp.load(self._named(member, targets), storage_reader=dcp.FileSystemReader(folder))

    def _named(self, member: Member, arrays: Sequence[Array]) -> dict[str, DTensor]:
        mesh = member.kept.setdefault("mesh", init_device_mesh("cpu", (member.ranks,)))
        return {
            one.name: DTensor.from_local(torch.from_numpy(one.array), mesh, [Shard(0 if one.box.shape[1] == one.global_shape[1] else 1)])
            for one in arrays
        }


CONTENDERS: Sequence[Way] = (OurResume(), DcpSharded())


def save_rows(member: Member, way: Way, tensors: Tensors, folder: Path) -> None:
    way.write(member, folder, made(tensors, member.rank, member.ranks))


def load_columns(member: Member, way: Way, tensors: Tensors, folder: Path) -> int:
    """By how many bytes the process grew."""
    growth = Growth()
    targets = [
        Array(name, tensors.shape, box, np.empty(box.shape, np.float32))
        for name, box in replace(tensors, cut=1).of(member.rank, member.ranks)
    ]
    way.read(member, folder, targets)
    member.kept["loaded"] = targets
    return growth.peak()


def check_columns(member: Member) -> None:
    for one in member.kept.pop("loaded"):
        if not np.array_equal(one.array, value(one.name, one.global_shape, one.box)):
            raise AssertionError(f"{one.name}: other values than were saved")


@dataclass(frozen=True)
class Resumes:
    """`tensors`: matrices, saved by rows (cut 0), one file a rank, and loaded by columns."""

    tensors: Tensors
    ranks: int

    @property
    def shard(self) -> int:
        return self.tensors.nbytes // self.ranks

    @property
    def goals(self) -> tuple[Goal, Goal]:
        label = f"resume of {size_name(self.tensors.nbytes)}, {self.ranks} ranks"
        return Goal(f"{label}: memory", "own shard + 256 MB", 1.0), Goal(f"{label}: time, warm", "DCP", None)

    @property
    def disk_bytes(self) -> int:
        return self.tensors.nbytes * (len(CONTENDERS) * 11) // 10

    @property
    def memory_bytes(self) -> int:
        """Shards, files, and as much again for what a reader makes besides."""
        return self.tensors.nbytes * 4 + self.ranks * BESIDE_THE_SHARD

    def run(self, bench: Bench) -> Iterator[Row]:
        """A world of its own for each load: memory that the last one freed would hide the growth of the next."""
        grown: dict[str, list[float]] = {one.name: [] for one in CONTENDERS}
        seconds: dict[str, list[float]] = {one.name: [] for one in CONTENDERS}
        folders = {one.name: (bench.fresh(f"resume-{one.name}"), bench.fresh(f"warm-up-{one.name}")) for one in CONTENDERS}
        warm_up = replace(WARM_UP, shape=(8 * self.ranks, 8 * self.ranks), cut=0)
        for one in CONTENDERS:
            with World(self.ranks, bench.folder) as world:
                for tensors, folder in zip((self.tensors, warm_up), folders[one.name], strict=True):
                    world.run(save_rows, one, tensors, folder)
        for repeat, one in turns(bench.repeats, CONTENDERS):
            whole, small = folders[one.name]
            with World(self.ranks, bench.folder) as world:
                world.run(load_columns, one, warm_up, small)  # libraries are mapped, connections are up
                world.run(check_columns)
                answers = world.answers(load_columns, one, self.tensors, whole)
                grown[one.name].append(max(answer.value for answer in answers))
                seconds[one.name].append(max(answer.end for answer in answers) - min(answer.start for answer in answers))
                if repeat == 0:
                    world.run(check_columns)
        for pair in folders.values():
            for folder in pair:
                shutil.rmtree(folder)
        memory, time = self.goals
        if bench.wants(memory):
            allowed = [float(self.shard + BESIDE_THE_SHARD)] * bench.repeats
            yield from rows_of(memory, allowed, grown, "bytes")
        if bench.wants(time):
            yield from rows_of(time, seconds[DCP.name], seconds)
