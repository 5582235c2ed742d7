"""The fake of slurmtrain.slurm.client.SlurmClient: a cluster of a few records that the test moves by hand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slurmtrain.clock import Clock
from slurmtrain.errors import SlurmError, SlurmUnavailableError
from slurmtrain.slurm.types import JobInfo, NodeInfo, NodePlace, StepInfo

_ALIVE = {"PENDING", "RUNNING", "COMPLETING", "SUSPENDED"}


@dataclass(frozen=True)
class Cancelled:
    """One scancel as it was asked for."""

    job_id: str
    step: str | None
    signal: str | None
    batch: bool


class FakeSlurm:
    """Jobs that are submitted start at once on the first nodes; nothing ends by itself.

    `put(JobInfo)` sets a job as Slurm shows it, `change(id, ...)` changes fields of it, `step(id, name)` adds a step, `node(...)`
    sets a node; `forget(id)` drops it from slurmctld; `accounting[id]` is what sacct remembers; `down = True`: no daemon answers.
    `submitted`, `requeued`, `cancelled`, `questions` hold what was asked.
    """

    def __init__(self, clock: Clock, nodes: Sequence[str] = ("n1", "n2", "n3", "n4")) -> None:
        self._clock = clock
        self._ids = itertools.count(1)
        self._nodes = {name: NodeInfo(name, frozenset({"IDLE"}), cpus=8, memory_bytes=16 << 30, gres="gpu:4") for name in nodes}
        self._jobs: dict[str, JobInfo] = {}
        self._steps: dict[str, list[StepInfo]] = {}
        self.config = {"ClusterName": "fake", "SlurmdTimeout": "10 sec", "KillWait": "5 sec", "MaxArraySize": "11"}
        self.topology: dict[str, NodePlace] = {}
        self.accounting: dict[str, JobInfo] = {}
        self.down = False
        self.submitted: list[tuple[Path, tuple[str, ...]]] = []
        self.requeued: list[str] = []
        self.cancelled: list[Cancelled] = []
        self.questions: list[str] = []

    def put(self, info: JobInfo) -> None:
        self._jobs[info.job_id] = info

    def change(self, job_id: str, **fields: object) -> JobInfo:
        self._jobs[job_id] = replace(self._jobs[job_id], **fields)  # type: ignore[arg-type]
        return self._jobs[job_id]

    def forget(self, job_id: str) -> None:
        del self._jobs[job_id]

    def step(self, job_id: str, name: str) -> StepInfo:
        steps = self._steps.setdefault(job_id, [])
        steps.append(StepInfo(str(len(steps)), name, self._jobs[job_id].nodes))
        return steps[-1]

    def end_step(self, job_id: str, name: str) -> None:
        self._steps[job_id] = [info for info in self._steps.get(job_id, []) if info.name != name]

    def node(self, name: str, *states: str, reason: str = "") -> None:
        self._nodes[name] = replace(self._nodes[name], states=frozenset(states), reason=reason)

    def submit(self, script: Path, *, options: Sequence[str] = ()) -> str:
        self._ask("submit")
        self.submitted.append((script, tuple(options)))
        job_id = str(next(self._ids))
        wanted = {name: value for name, _, value in (option.partition("=") for option in options)}
        count = int(wanted.get("--nodes", "1").rpartition("-")[2])
        nodes = tuple(self._nodes)[:count]
        self.put(JobInfo(job_id, wanted.get("--job-name", script.name), "RUNNING", nodes=nodes, batch_host=nodes[0],
                         start_time=self._clock.time(), comment=wanted.get("--comment", ""), partition="main", user="root",
                         cpus_per_node=8, memory_per_node_bytes=16 << 30))  # fmt: skip
        self._steps[job_id] = [StepInfo("batch", "batch", nodes[:1])]
        return job_id

    def job(self, job_id: str) -> JobInfo | None:
        self._ask("job")
        if not job_id.replace("_", "").isdigit():
            raise SlurmError(f"{job_id!r} is not a job id")
        return self._jobs.get(job_id)

    def my_jobs(self, *, max_age_s: float = 10.0) -> tuple[float, list[JobInfo]]:
        self._ask("my_jobs")
        return 0.0, [info for info in self._jobs.values() if info.state in _ALIVE]

    def finished_job(self, job_id: str) -> JobInfo | None:
        self._ask("finished_job")
        return self.accounting.get(job_id)

    def nodes(self, names: Sequence[str]) -> list[NodeInfo]:
        self._ask("nodes")
        return [self._nodes[name] for name in names if name in self._nodes]

    def places(self, names: Sequence[str]) -> list[NodePlace]:
        self._ask("places")
        return [self.topology.get(name, NodePlace(name)) for name in names]

    def config_value(self, key: str) -> str | None:
        self._ask("config_value")
        return self.config.get(key)

    def steps(self, job_id: str) -> list[StepInfo]:
        self._ask("steps")
        return list(self._steps.get(job_id, []))

    def requeue(self, job_id: str) -> None:
        self._ask("requeue")
        info = self._jobs.get(job_id)
        if info is None:
            raise SlurmError(f"scontrol: Invalid job id specified for job {job_id}")
        self.requeued.append(job_id)
        if info.state != "PENDING":
            self._steps[job_id] = []
            self.change(job_id, state="PENDING", reason="BeginTime", restarts=info.restarts + 1, nodes=(), batch_host="")

    def start_in(self, job_id: str, delay_s: float) -> None:
        info = self._waiting(job_id)
        if info is not None:
            self.change(job_id, start_time=self._clock.time() + delay_s)

    def avoid(self, job_id: str, nodes: Sequence[str]) -> None:
        if self._waiting(job_id) is None:
            raise SlurmError("scontrol: Job is no longer pending execution")
        self.change(job_id, avoided=tuple(nodes))

    def partition_nodes(self, partition: str) -> list[NodeInfo]:
        self._ask("partition_nodes")
        return list(self._nodes.values()) if partition == "main" else []

    def _waiting(self, job_id: str) -> JobInfo | None:
        """The job where it waits. Raises SlurmError where there is none."""
        self._ask("update")
        info = self._jobs.get(job_id)
        if info is None:
            raise SlurmError("scontrol: Invalid job id specified")
        return info if info.state == "PENDING" or (info.state == "COMPLETING" and info.restarts) else None

    def cancel(self, job_id: str, *, step: str | None = None, signal: str | None = None, batch: bool = False) -> None:
        self._ask("cancel")
        self.cancelled.append(Cancelled(job_id, step, signal, batch))
        if step is not None:
            self._steps[job_id] = [info for info in self._steps.get(job_id, []) if info.step != step]
        elif signal is None and not batch and job_id in self._jobs and not self._jobs[job_id].ended:
            self._steps[job_id] = []
            self.change(job_id, state="CANCELLED", end_time=self._clock.time(), exit_code=-15)

    def _ask(self, what: str) -> None:
        self.questions.append(what)
        if self.down:
            raise SlurmUnavailableError("scontrol: Slurm does not answer: Unable to contact slurm controller (connect failure)")
