"""The StepLauncher Protocol: how the ranks of an attempt, or one check per node, are started inside an allocation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class StepSpec:
    """What to start, and where.

    `nodes`: host names, in the order of the world; `command`: argv of one task; `environment`: added to the allocation's;
    `output`: pattern of the log file, with `%n` in its name for the index of the node in the step, padded to three digits
    (node-%n.log). With srun that is the index in Slurm's own order of nodes, which may differ from that of `nodes`: srun sorts
    its node list, and ranks find their place by the node's name and SLURM_LOCALID. mpiexec writes everything into index 0.
    """

    command: tuple[str, ...]
    nodes: tuple[str, ...]
    tasks_per_node: int
    output: Path
    job_id: str = ""
    cpus_per_task: int = 1
    gpus_per_node: int = 0
    mpi: str | None = None
    """srun --mpi; None: no MPI (a check), and a task that fails does not end the others: each node answers for itself."""
    environment: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    options: tuple[str, ...] = ()
    """The site's own, such as --cpu-bind=..."""
    name: str = ""
    """Of the step, for srun; empty: one that the same spec always has."""

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

    def abandon(self) -> None:
        """Have it ended, and wait for nobody: of a check on nodes that may be dead. Its tasks end by themselves where they can."""


class StepLauncher(Protocol):
    """srun, mpiexec, or a fake."""

    def argv(self, spec: StepSpec) -> list[str]:
        """The very command that `start` runs."""

    def start(self, spec: StepSpec) -> Step:
        """Start it. Raises LaunchError when the launcher is not there, or cannot do what is asked."""

    def end_left(self, spec: StepSpec, grace_s: float) -> bool:
        """End what another process started by this spec, and did not live to end; whether there was any."""


def launcher_log(spec: StepSpec) -> Path:
    """Where the launcher's own words go when they are kept apart from the ranks' output: node-%n.log has launcher-node.log."""
    stem = spec.output.stem.replace("%n", "").strip("-._") or "step"
    return spec.output.with_name(f"launcher-{stem}.log")


def is_about(line: str, node: str) -> bool:
    """Whether a launcher's, or a node's, line names a node.

    >>> is_about("srun: error: n1: task 0: Killed", "n1"), is_about("srun: error: n10: task 9: Killed", "n1")
    (True, False)
    """
    return re.search(rf"(?<![\w-]){re.escape(node)}(?![\w-])", line) is not None


def tail(path: Path, limit_bytes: int = 65536) -> str:
    """The end of a log; empty where there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - limit_bytes))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
