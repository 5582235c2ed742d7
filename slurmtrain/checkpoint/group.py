"""The processes that save and load together, as a Protocol: torch.distributed, MPI, threads of a test, or one process alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from slurmtrain import errors
from slurmtrain.errors import CheckpointError, SlurmtrainError, one_line

T = TypeVar("T")


class Group(Protocol):
    """A set of processes; every method but the two properties is called by all of them, in the same order."""

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""

    @property
    def size(self) -> int: ...

    def gather(self, value: Any) -> list[Any] | None:
        """The values of all ranks, in their order, on rank 0; None elsewhere."""

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value on every rank; what the others pass is ignored."""

    def highest(self, value: int) -> int:
        """The highest of all ranks' values, on every rank; cheap in a large world, too."""

    def barrier(self) -> None:
        """Return when all have come."""


class SoloGroup:
    """One process."""

    rank = 0
    size = 1

    def gather(self, value: Any) -> list[Any] | None:
        return [value]

    def broadcast(self, value: Any) -> Any:
        return value

    def highest(self, value: int) -> int:
        return value

    def barrier(self) -> None:
        return


@dataclass(frozen=True)
class Failure:
    """An error on its way to other ranks: one line, and which of our errors it is (the name of its class)."""

    message: str
    kind: str

    def error(self) -> SlurmtrainError:
        return self.type(self.message)

    @property
    def type(self) -> type[SlurmtrainError]:
        """CheckpointError for what is no error of ours."""
        found = getattr(errors, self.kind, None)
        return found if isinstance(found, type) and issubclass(found, SlurmtrainError) else CheckpointError


def captured(deed: Callable[[], T]) -> T | Failure:
    """What the deed gives back, or its failure as a value: a rank that raised here would leave its peers waiting for ever."""
    try:
        return deed()
    except Exception as error:  # noqa: BLE001 peers must hear of any failure
        return Failure(reason_of(error), type(error).__name__)


def on_rank_0(group: Group, deed: Callable[[], T]) -> T:
    """Do it on rank 0; every rank gets what it gave back, or raises its error (its kind, where it is ours; else CheckpointError)."""
    outcome = group.broadcast(captured(deed) if group.rank == 0 else None)
    if isinstance(outcome, Failure):
        raise outcome.error()
    return outcome


def reason_of(error: BaseException) -> str:
    """One line for an error of ours, of the system or of HDF5, whose own texts run over many lines."""
    if isinstance(error, SlurmtrainError):
        return str(error)
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno) + (f": {error.filename}" if error.filename else "")
    return f"{type(error).__name__}: {one_line(str(error), 200)}"
