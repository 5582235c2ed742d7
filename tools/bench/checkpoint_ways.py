"""Ways to write a state to files and to read it back: a raw file, ours, and the peers. All deeds of a world's members.

A state is, on each rank, some arrays with the names and the boxes of the global tensors that they are. Each way writes with fsync, and
reads into tensors that are there already, as a resume does: torch.load and safetensors give tensors that lie in the mapped file, from
where they are copied.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from checkpoint_ours import Ours
from checkpoint_state import Array, targets_of
from checkpoint_world import Member

__all__ = ["DCP", "OURS", "RAW", "SAFETENSORS", "TORCH_SAVE", "Plain", "Way", "check", "read", "ready", "write"]


class Way(Protocol):
    """`write` and `read` are called by all members at once."""

    @property
    def name(self) -> str: ...

    def ready(self, member: Member, folder: Path) -> None:
        """What is done once and not timed."""

    def write(self, member: Member, folder: Path, state: Sequence[Array]) -> None: ...

    def read(self, member: Member, folder: Path, targets: Sequence[Array]) -> None: ...


class Plain:
    """A way with nothing to get ready."""

    def ready(self, member: Member, folder: Path) -> None:
        return


def ready(member: Member, way: Way, folder: Path) -> None:
    way.ready(member, folder)


def write(member: Member, way: Way, folder: Path) -> None:
    way.write(member, folder, member.kept["state"])


def read(member: Member, way: Way, folder: Path) -> None:
    way.read(member, folder, targets_of(member))


def check(member: Member, way: Way) -> None:
    """Raise where the bytes last read are not those of the state; targets are cleared for the next way."""
    for one, target in zip(member.kept["state"], targets_of(member), strict=True):
        if not np.array_equal(one.array.view(np.uint8), target.array.view(np.uint8)):
            raise AssertionError(f"{one.name}: {way.name} has read other bytes than were written")
        target.array.fill(0)


def durable(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def named(arrays: Sequence[Array]) -> dict[str, torch.Tensor]:
    """torch's views of the same memory."""
    return {one.name: torch.from_numpy(one.array) for one in arrays}


class Raw(Plain):
    """One file a rank: a write call an array, then fsync; a read call an array."""

    name = "raw"

    def write(self, member: Member, folder: Path, state: Sequence[Array]) -> None:
        with open(folder / f"raw-{member.rank}", "wb", buffering=0) as file:
            for one in state:
                data = memoryview(one.array).cast("B")
                while len(data):
                    data = data[file.write(data) :]
            os.fsync(file.fileno())

    def read(self, member: Member, folder: Path, targets: Sequence[Array]) -> None:
        with open(folder / f"raw-{member.rank}", "rb", buffering=0) as file:
            for one in targets:
                place = memoryview(one.array).cast("B")
                while len(place):
                    count = file.readinto(place)
                    if not count:
                        raise EOFError(file.name)
                    place = place[count:]


class Dcp(Plain):
    """torch.distributed.checkpoint with FileSystemWriter and FileSystemReader as they are by default (fsync, one file a rank)."""

    name = "DCP"

    def write(self, member: Member, folder: Path, state: Sequence[Array]) -> None:
        dcp.save(named(state), storage_writer=dcp.FileSystemWriter(folder))

    def read(self, member: Member, folder: Path, targets: Sequence[Array]) -> None:
        dcp.load(named(targets), storage_reader=dcp.FileSystemReader(folder))


@dataclass(frozen=True)
class OneFile(Plain):
    """A file a rank by one call of a library, then fsync."""

    name: str
    save: Callable[[dict[str, torch.Tensor], Path], Any]
    load: Callable[[Path], dict[str, torch.Tensor]]

    def write(self, member: Member, folder: Path, state: Sequence[Array]) -> None:
        path = folder / f"rank-{member.rank}"
        self.save(named(state), path)
        durable(path)

    def read(self, member: Member, folder: Path, targets: Sequence[Array]) -> None:
        found = self.load(folder / f"rank-{member.rank}")
        for name, target in named(targets).items():
            target.copy_(found[name])


def _load_torch(path: Path) -> dict[str, torch.Tensor]:
    found = torch.load(path, weights_only=True, mmap=True)
    assert isinstance(found, dict)
    return found


def _load_safetensors(path: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(path)


RAW = Raw()
OURS = Ours()
DCP = Dcp()
TORCH_SAVE = OneFile("torch.save", torch.save, _load_torch)
SAFETENSORS = OneFile("safetensors", safetensors.torch.save_file, _load_safetensors)
