"""The row of asynchronous saves: how long training stands still, against a bare copy of the state."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from checkpoint_ours import OurStall
from checkpoint_results import Goal, Row, rows_of
from checkpoint_rows import Bench, size_name, turns
from checkpoint_state import Tensors, hold
from checkpoint_ways import named
from checkpoint_world import Member, World
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

MEMCPY = "memcpy"


class Stall(Protocol):
    """What of it stays from one save to the next is in member.kept under its name."""

    @property
    def name(self) -> str: ...

    def begin(self, member: Member, folder: Path) -> None:
        """What training waits for."""

    def finish(self, member: Member) -> None:
        """Until the save is durable. Raises where it failed."""


class Memcpy:
    """Array by array into memory that is there already."""

    name = MEMCPY

    def begin(self, member: Member, folder: Path) -> None:
        state = member.kept["state"]
        buffers = member.kept.setdefault(self.name, [np.zeros_like(one.array) for one in state])
        for one, buffer in zip(state, buffers, strict=True):
            np.copyto(buffer, one.array)

    def finish(self, member: Member) -> None:
        return


@dataclass(frozen=True)
class DcpAsync:
    """async_save on a group of its own with a stager that is kept, and with it its memory (shared with DCP's process, where it has one)."""

    name: str
    kind: AsyncCheckpointerType

    def begin(self, member: Member, folder: Path) -> None:
        if self.name not in member.kept:
            shared = self.kind is AsyncCheckpointerType.PROCESS
            options = StagingOptions(
                use_pinned_memory=False, use_shared_memory=shared, use_async_staging=False, use_non_blocking_copy=False
            )
            member.kept[self.name] = (DefaultStager(options), dist.new_group(backend="gloo"))
        stager, group = member.kept[self.name]
        saved = dcp.async_save(
            named(member.kept["state"]),
            storage_writer=dcp.FileSystemWriter(folder),
            process_group=group,
            async_checkpointer_type=self.kind,
            async_stager=stager,
        )
        assert isinstance(saved, Future)
        member.kept["saving"] = saved

    def finish(self, member: Member) -> None:
        member.kept.pop("saving").result()


CONTENDERS: Sequence[Stall] = (
    Memcpy(),
    OurStall(),
    DcpAsync("DCP async (thread)", AsyncCheckpointerType.THREAD),
    DcpAsync("DCP async (process)", AsyncCheckpointerType.PROCESS),
)


def begin(member: Member, contender: Stall, folder: Path) -> None:
    contender.begin(member, folder)


def finish(member: Member, contender: Stall) -> None:
    contender.finish(member)


@dataclass(frozen=True)
class Stalls:
    """Each contender saves once before its clock runs: processes are then up and memory is there."""

    tensors: Tensors
    ranks: int
    rate: int = 1

    @property
    def goals(self) -> tuple[Goal]:
        ranks = f"{self.ranks} rank{'s' if self.ranks > 1 else ''}"
        return (Goal(f"async stall of {size_name(self.tensors.nbytes)}, {ranks}", "memcpy of the state", 0.9),)

    @property
    def disk_bytes(self) -> int:
        return self.tensors.nbytes * 11 // 10

    @property
    def memory_bytes(self) -> int:
        """State, one copy for each contender, one more in DCP's process, and the file."""
        return self.tensors.nbytes * (len(CONTENDERS) + 3)

    def run(self, bench: Bench) -> Iterator[Row]:
        found: dict[str, list[float]] = {one.name: [] for one in CONTENDERS}
        with World(self.ranks, bench.folder) as world:
            world.run(hold, self.tensors)
            for contender in CONTENDERS:
                self._once(bench, world, contender)
            for _, contender in turns(bench.repeats * self.rate, CONTENDERS):
                found[contender.name].append(self._once(bench, world, contender))
        yield from rows_of(self.goals[0], found[MEMCPY], found)

    def _once(self, bench: Bench, world: World, contender: Stall) -> float:
        folder = bench.fresh("async")
        seconds = world.timed(begin, contender, folder)
        world.run(finish, contender)
        shutil.rmtree(folder)
        return seconds
