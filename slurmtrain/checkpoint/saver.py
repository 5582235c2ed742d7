"""What saves checkpoints, as a Protocol: `sync.SyncSaver` writes while training stands still, `staged.AsyncSaver` in a process of its own.

A failed save is an `Outcome`, never an exception: old checkpoints are as they were, nothing half is visible, training goes on.

How a failure comes to be known by all ranks: one rank's `poll` tells it; it rides in the step's reduction (a flag of its own); when all
ranks have agreed, all call `fail`. `begin` and `wait` settle what has failed before them by themselves: whoever carries the flag takes
it back after either.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from slurmtrain.boxes import Box
from slurmtrain.checkpoint.layout import BoxSpec
from slurmtrain.config.site import SiteStorage
from slurmtrain.errors import CheckpointError
from slurmtrain.rundir import RunDir
from slurmtrain.store.retention import RetentionPolicy

Kinds = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and element type of whole tensors, by name."""


@dataclass(frozen=True)
class Header:
    """What a checkpoint says of itself besides its tensors: equal on all ranks. `layout` and `state`: values of JSON.

    `t`: unix seconds, rank 0's. `state["metrics"]`: {name: number}, by which the best checkpoints are kept. What is of a class of its own,
    such as `torch.__version__`, is held as JSON has it: a writer would load torch to read it. Raises TypeError for what JSON has not.
    """

    step: int
    attempt: int
    tokens: int
    t: float
    layout: Mapping[str, Any]
    state: Mapping[str, Any]

    def __post_init__(self) -> None:
        for name in ("layout", "state"):
            object.__setattr__(self, name, json.loads(json.dumps(getattr(self, name))))


@dataclass(frozen=True)
class Outcome:
    """How a save ended. `ok`: it is durable, or was there already (a note says so).

    `stall_s`: what training waited for it on this rank; `write_s`: from the begin until it was durable, or had failed; `bytes`: of all
    files. `notes`: what went wrong without harm. `error`: one line, which names the rank where one is to blame. `tier`: where it is
    durable, or should be; a save to both tiers has two outcomes.
    """

    step: int
    ok: bool
    stall_s: float
    write_s: float
    bytes: int
    notes: tuple[str, ...] = ()
    error: str = ""
    tier: Literal["shared", "local"] = "shared"


@dataclass(frozen=True)
class Terms:
    """What holds for all saves of a run. `timeout_s`: an asynchronous save that takes longer has failed."""

    run: RunDir
    retention: RetentionPolicy
    storage: SiteStorage = field(default_factory=SiteStorage)
    allow_nonfinite: bool = False
    timeout_s: float = 1800.0


class Source(Protocol):
    """What one rank saves: the boxes that it owns. `state.TensorSource` for torch's tensors, `ArraySource` for numpy's."""

    @property
    def kinds(self) -> Kinds:
        """Of all tensors that this rank has a part of, also where the part is empty."""

    @property
    def specs(self) -> Sequence[BoxSpec]:
        """The boxes, none of them empty. Layouts are computed anew only when these differ from the last save's."""

    def fetch(self, index: int) -> np.ndarray:
        """The content of a box: of its shape, any strides, in the carrier of its type; it may be the tensor's own memory."""

    def copy_to(self, index: int, target: np.ndarray) -> None:
        """Copy a box to an array of its shape, in row-major order; may go on until `settle`."""

    def settle(self) -> None:
        """Return when all copies are made."""


class Saver(Protocol):
    """Saves the state of all ranks. Neither torch nor MPI is needed; one thread alone calls it."""

    def prepare(self, source: Source) -> None:
        """Collective, before the first step: lay the file out, and make the memory of asynchronous saves ready. `begin` does it else.

        What goes wrong here is told by the save that needs it.
        """

    def begin(self, header: Header, source: Source, *, shared: bool = True, local: bool = True) -> Outcome | None:
        """Collective, all ranks at the same step. The state that is saved is that of the moment of the call.

        Where the nodes' own disks take part, `shared`: it goes to the run folder, too, though they would do; `local`: it goes to them at
        all. Elsewhere it always goes to the run folder.

        Synchronous: how it ended, the same on all ranks but for `stall_s`. Asynchronous: None, once the state is copied; an outcome
        where nothing had to be written. While the last save is under way on any rank, all wait for it. Raises OwnershipError, on
        all ranks alike, when another attempt owns the run and this is found out at once.
        """

    def poll(self) -> list[Outcome]:
        """At once and without the other ranks: saves that have ended, on rank 0; elsewhere what failed on this rank, alone."""

    def wait(self) -> list[Outcome]:
        """Collective: until nothing is under way. What ended and rank 0 has not told yet, the same on all ranks.

        Raises OwnershipError, on all ranks alike, when a save found that another attempt owns the run.
        """

    def fail(self, why: str) -> None:
        """All ranks have agreed that the save under way is broken: give it up. Nothing where none is."""

    def close(self) -> None:
        """Give memory and processes back, without waiting; a save that is under way may still come to its end."""


@dataclass(frozen=True)
class Piece:
    """A box of numpy's: `array` has the box's shape, in the carrier type of `dtype` (checkpoint.dtypes)."""

    name: str
    global_shape: tuple[int, ...]
    box: Box
    dtype: str
    array: np.ndarray


class ArraySource:
    """Pieces in memory. Raises CheckpointError where two of them disagree on shape or type of a tensor."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.kinds = kinds_of((one.name, one.global_shape, one.dtype) for one in pieces)
        self._pieces = [one for one in pieces if one.box.volume]
        self.specs = tuple(BoxSpec(one.name, one.global_shape, one.box, one.dtype) for one in self._pieces)

    def fetch(self, index: int) -> np.ndarray:
        return self._pieces[index].array

    def copy_to(self, index: int, target: np.ndarray) -> None:
        np.copyto(target, self._pieces[index].array)

    def settle(self) -> None:
        return


def kinds_of(named: Iterable[tuple[str, tuple[int, ...], str]]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type by name, of (name, shape, type). Raises CheckpointError where one name has two."""
    kinds: dict[str, tuple[tuple[int, ...], str]] = {}
    for name, shape, dtype in named:
        if kinds.setdefault(name, (shape, dtype)) != (shape, dtype):
            raise CheckpointError(f"{name}: {kinds[name]} and {(shape, dtype)} on one rank")
    return kinds


def shares(ranks_per_node: int, writers_per_node: int | None, nodes: int) -> list[list[int]]:
    """The ranks that share a writer, in ascending order, for each writer of the world; the first of each writes.

    Savers are given two groups: all ranks, and those that share a writer with this one (`mates`; one rank alone: SoloGroup).

    >>> shares(4, 2, 2), shares(3, 2, 1), shares(2, None, 1)
    ([[0, 1], [2, 3], [4, 5], [6, 7]], [[0, 1], [2]], [[0], [1]])
    """
    writers = min(writers_per_node or ranks_per_node, ranks_per_node)
    least, more = divmod(ranks_per_node, writers)
    sizes = [least + (i < more) for i in range(writers)] * nodes
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [list(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)]


Register = Callable[[np.ndarray], Callable[[], None]]
"""Tells a device of memory that it will copy to (`state.pinned`); gives what takes it back."""
