"""The allocation: which nodes the supervisor has, until when, and what Slurm says about them.

After a failure the truth is `scontrol show job`, never SLURM_JOB_NODELIST. Slurm is asked at most every 30 s, unless something died
(`fresh=True`); while it does not answer, its last word stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from slurmtrain.clock import Clock
from slurmtrain.errors import SlurmError, SlurmUnavailableError
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.slurm.types import JobInfo, NodePlace

MAX_AGE_S = 30.0
_FIRST_ANSWER_S = 120.0
_RETRY_S = 5.0


@dataclass(frozen=True)
class Grant:
    """What the allocation is. `job`: Slurm's last word (None: no Slurm, or the job is unknown to it)."""

    nodes: tuple[str, ...]
    job: JobInfo | None = None

    @property
    def end_time(self) -> float | None:
        return self.job.end_time if self.job else None


class Allocation(Protocol):
    """Where an attempt may run."""

    @property
    def job_id(self) -> str:
        """As `scontrol requeue` wants it (A_a for an array member); empty without Slurm."""

    @property
    def step_job_id(self) -> str:
        """As `srun --jobid` wants it."""

    @property
    def restart_count(self) -> int: ...

    def look(self, *, fresh: bool = False) -> Grant:
        """What it is now, at most 30 s old. Raises SlurmError when Slurm has never answered."""

    def places(self, nodes: Sequence[str]) -> list[NodePlace]:
        """Where nodes hang in the network; empty where that is not known."""

    def down(self, nodes: Sequence[str]) -> frozenset[str] | None:
        """Which of these Slurm calls down; None when it does not answer."""

    def setting(self, key: str, default_s: float) -> float:
        """A time of Slurm's configuration in seconds (KillWait, SlurmdTimeout)."""

    def requeue(self) -> None:
        """Ask for a requeue: the last act. Raises SlurmError."""


class SlurmAllocation:
    """The job whose variables are in the environment."""

    def __init__(self, client: SlurmClient, clock: Clock, environ: Mapping[str, str]) -> None:
        self._client, self._clock = client, clock
        self._step_job_id = environ["SLURM_JOB_ID"]
        array, task = environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", "")
        self._job_id = f"{array}_{task}" if array and task else self._step_job_id
        self._restart_count = int(environ.get("SLURM_RESTART_COUNT") or 0)
        self._last: Grant | None = None
        self._asked_at = float("-inf")

    @property
    def job_id(self) -> str:
        return self._job_id

    @property
    def step_job_id(self) -> str:
        return self._step_job_id

    @property
    def restart_count(self) -> int:
        return self._restart_count

    def look(self, *, fresh: bool = False) -> Grant:
        if self._last is None:
            self._last = self._first_look()
        elif fresh or self._clock.monotonic() - self._asked_at >= MAX_AGE_S:
            self._last = self._ask_again(self._last)
        return self._last

    def _first_look(self) -> Grant:
        limit = self._clock.monotonic() + _FIRST_ANSWER_S
        while True:
            try:
                return self._ask()
            except SlurmUnavailableError:
                if self._clock.monotonic() > limit:
                    raise
                self._clock.sleep(_RETRY_S)

    def _ask_again(self, last: Grant) -> Grant:
        try:
            return self._ask()
        except SlurmError:
            return last

    def _ask(self) -> Grant:
        self._asked_at = self._clock.monotonic()
        job = self._client.job(self._job_id)
        return Grant(job.nodes if job else (), job)

    def places(self, nodes: Sequence[str]) -> list[NodePlace]:
        try:
            return self._client.places(nodes)
        except SlurmError:
            return []

    def down(self, nodes: Sequence[str]) -> frozenset[str] | None:
        try:
            return frozenset(info.name for info in self._client.nodes(nodes) if info.down)
        except SlurmError:
            return None

    def setting(self, key: str, default_s: float) -> float:
        try:
            value = self._client.config_value(key)
        except SlurmError:
            return default_s
        digits = (value or "").split()[:1]
        return float(digits[0]) if digits and digits[0].isdigit() else default_s

    def requeue(self) -> None:
        self._client.requeue(self._job_id)


class LocalAllocation:
    """The machine itself, as a number of emulated nodes (site launcher mpiexec): local-1, local-2, ..."""

    def __init__(self, nodes: int) -> None:
        self._nodes = tuple(f"local-{i + 1}" for i in range(nodes))

    @property
    def job_id(self) -> str:
        return ""

    @property
    def step_job_id(self) -> str:
        return ""

    @property
    def restart_count(self) -> int:
        return 0

    def look(self, *, fresh: bool = False) -> Grant:  # noqa: ARG002 there is nobody to ask
        return Grant(self._nodes)

    def places(self, nodes: Sequence[str]) -> list[NodePlace]:  # noqa: ARG002
        return []

    def down(self, nodes: Sequence[str]) -> frozenset[str] | None:  # noqa: ARG002
        return frozenset()

    def setting(self, key: str, default_s: float) -> float:  # noqa: ARG002
        return default_s

    def requeue(self) -> None:
        raise SlurmError("there is no Slurm that could start this run again: start it by hand")
