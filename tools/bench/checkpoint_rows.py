"""The rows of files: writing, reading cold and warm, of few large and many small tensors, and reading parts of a matrix."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Protocol

import psutil
from checkpoint_results import Goal, Row, rows_of
from checkpoint_slices import SLICERS, check_slice, prepare, slice_of
from checkpoint_state import Tensors, hold, targets_of
from checkpoint_ways import DCP, OURS, RAW, SAFETENSORS, TORCH_SAVE, Way, check, read, ready, write
from checkpoint_world import World, drop, resident

WAYS: Sequence[Way] = (RAW, OURS, DCP, TORCH_SAVE, SAFETENSORS)
SPARE_BYTES = 1 << 30
LEFT_IN_MEMORY = 0.02
"""Of a file that was dropped; more, and what is measured is not the disk."""


@dataclass
class Bench:
    """How and where. `pattern`: of the names of rows; `patient`: wait for the disk to be idle before each turn."""

    folder: Path
    repeats: int
    pattern: str = "*"
    whole_machine: bool = False
    patient: bool = True
    notes: list[str] = field(default_factory=list)

    def wants(self, goal: Goal) -> bool:
        return fnmatch(goal.name, f"*{self.pattern}*")

    def drop(self, folder: Path) -> None:
        drop(folder, whole_machine=self.whole_machine)
        left = resident(folder)
        if left > LEFT_IN_MEMORY:
            self.notes.append(f"{left:.0%} of {folder.name} was still in memory when it was read cold")

    def fresh(self, name: str) -> Path:
        """An empty folder, when what was removed before is done with: a disk may be busy with that for long."""
        folder = self.folder / name
        folder.mkdir()
        if self.patient:
            os.sync()
        return folder


class Race(Protocol):
    """Contenders of some rows, measured in turns."""

    @property
    def goals(self) -> Sequence[Goal]: ...

    @property
    def disk_bytes(self) -> int: ...

    @property
    def memory_bytes(self) -> int: ...

    def run(self, bench: Bench) -> Iterator[Row]: ...


def lack(race: Race, folder: Path) -> str:
    """Why a race cannot be run here; "" where it can."""
    free, memory = shutil.disk_usage(folder).free, psutil.virtual_memory().available
    if free < race.disk_bytes + SPARE_BYTES:
        return f"{race.disk_bytes / 1e9:.1f} GB of disk needed and 1 GB to spare, {free / 1e9:.1f} GB are free in {folder}"
    if memory < race.memory_bytes + SPARE_BYTES:
        return f"{race.memory_bytes / 1e9:.1f} GB of memory needed and 1 GB to spare, {memory / 1e9:.1f} GB are free"
    return ""


def turns(repeats: int, contenders: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """(repeat, contender): in another order each time, the same in each run: what one leaves behind (dirty disks, freed pages) must
    not always fall on the same next one."""
    for repeat in range(repeats):
        for one in random.Random(repeat).sample(contenders, len(contenders)):
            yield repeat, one


def size_name(nbytes: int) -> str:
    """
    >>> size_name(1_006_632_960), size_name(4_194_304)
    ('1 GB', '4 MB')
    """
    return f"{nbytes / 1e9:.0f} GB" if nbytes >= 1e9 / 2 else f"{nbytes / 1e6:.0f} MB"


@dataclass(frozen=True)
class Files:
    """Tensors written and read by some ranks at the same time. `rate`: repeats for each that is asked for: short ones are noisy."""

    label: str
    tensors: Tensors
    ranks: int
    ratios: tuple[float, float, float]
    """To reach: written, read cold, read warm."""
    rate: int = 1

    @property
    def goals(self) -> tuple[Goal, Goal, Goal]:
        ranks = f"{self.ranks} rank{'s' if self.ranks > 1 else ''}"
        return (
            Goal(f"write {self.label}, {ranks}", "raw write + fsync", self.ratios[0], writes=True),
            Goal(f"cold read {self.label}, {ranks}", "raw read, cold", self.ratios[1]),
            Goal(f"warm read {self.label}, {ranks}", "raw read, warm", self.ratios[2]),
        )

    @property
    def disk_bytes(self) -> int:
        return self.tensors.nbytes * 11 // 10

    @property
    def memory_bytes(self) -> int:
        """State, targets, the file."""
        return self.tensors.nbytes * 3

    def run(self, bench: Bench) -> Iterator[Row]:
        wanted = [bench.wants(goal) for goal in self.goals]
        found: list[dict[str, list[float]]] = [{way.name: [] for way in WAYS} for _ in self.goals]
        with World(self.ranks, bench.folder) as world:
            world.run(hold, self.tensors)
            for repeat, way in turns(bench.repeats * self.rate, WAYS):
                folder = bench.fresh("files")
                world.run(ready, way, folder)
                found[0][way.name].append(world.timed(write, way, folder))
                if any(wanted[1:]):
                    world.run(targets_of)
                    bench.drop(folder)
                    found[1][way.name].append(world.timed(read, way, folder))
                    if repeat == 0:
                        world.run(check, way)
                if wanted[2]:
                    found[2][way.name].append(world.timed(read, way, folder))
                shutil.rmtree(folder)
        for goal, seconds in [(goal, seconds) for goal, seconds, wants in zip(self.goals, found, wanted, strict=True) if wants]:
            yield from rows_of(goal, seconds[RAW.name], seconds)


@dataclass(frozen=True)
class Slices:
    """An eighth of a square matrix, of its rows or of its columns, read cold and warm."""

    side: int

    @property
    def goals(self) -> tuple[Goal, ...]:
        return tuple(
            Goal(f"{heat} 1/8 of {what} of {self.side} x {self.side}", f"DCP's reader, {heat.split()[0]}", ratio)
            for heat, goals in (("cold read of", (2.0, 3.0)), ("warm read of", (None, None)))
            for what, ratio in zip(("rows", "columns"), goals, strict=True)
        )

    @property
    def disk_bytes(self) -> int:
        return self.side**2 * 4 * (len(SLICERS) + 1)

    @property
    def memory_bytes(self) -> int:
        return self.side**2 * 4 * (len(SLICERS) + 2)

    def run(self, bench: Bench) -> Iterator[Row]:
        found: list[dict[str, list[float]]] = [{one.name: [] for one in SLICERS} for _ in self.goals]
        with World(1, bench.folder) as world:
            folders = {}
            for one in SLICERS:
                folders[one.name] = bench.fresh(f"slices-{one.name}")
                world.run(prepare, one, folders[one.name], self.side)
            for repeat, one in turns(bench.repeats, SLICERS):
                for dim in (0, 1):
                    bench.drop(folders[one.name])
                    for number in (dim, dim + 2):  # cold, then warm
                        found[number][one.name].append(world.timed(slice_of, one, folders[one.name], self.side, dim))
                    if repeat == 0:
                        world.run(check_slice, self.side, dim)
            for folder in folders.values():
                shutil.rmtree(folder)
        for goal, seconds in zip(self.goals, found, strict=True):
            if bench.wants(goal):
                yield from rows_of(goal, seconds[DCP.name], seconds)


__all__ = ["OURS", "Bench", "Files", "Race", "Slices", "lack", "size_name", "turns"]
