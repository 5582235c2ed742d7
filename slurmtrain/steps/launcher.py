"""The StepLauncher Protocol: how the ranks of an attempt, or one check per node, are started inside an allocation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class StepSpec:
    """What to start, and where.

    `nodes`: host names, in the order of the world; `command`: argv of one task; `environment`: added to the allocation's;
    `output`: pattern of the log file, with `%n` for the index of the node in the step (node-%n.log, padded to three digits).
    """

    command: tuple[str, ...]
    nodes: tuple[str, ...]
    tasks_per_node: int
    output: Path
    job_id: str = ""
    cpus_per_task: int = 1
    gpus_per_node: int = 0
    mpi: str | None = None
    """srun --mpi; None: no MPI (a check)."""
    environment: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    options: tuple[str, ...] = ()
    """The site's own, such as --cpu-bind=..."""

    @property
    def tasks(self) -> int:
        return len(self.nodes) * self.tasks_per_node


class Step(Protocol):
    """A started step."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """The launcher's own exit code, or None while it runs. Says nothing about why (see FORMATS: exit files)."""

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait; None when the limit came first."""

    def words(self) -> str:
        """What the launcher itself has printed ("srun: error: n1: task 3: Exited with exit code 7"); empty where it cannot be told."""

    def end(self, grace_s: float) -> None:
        """End every task of the step on every node: ask, wait up to `grace_s`, then kill. Returns when the launcher is gone."""


class StepLauncher(Protocol):
    """srun, mpiexec, or a fake."""

    def argv(self, spec: StepSpec) -> list[str]:
        """The very command that `start` runs."""

    def start(self, spec: StepSpec) -> Step:
        """Start it. Raises LaunchError when the launcher is not there."""
