"""What slurmtrain reads from Slurm, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

ENDED = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "NODE_FAIL", "PREEMPTED", "REVOKED"}
)
"""States of a job that is not in slurmctld as pending, running or about to run again."""


@dataclass(frozen=True)
class JobInfo:
    """One job, as `scontrol show job -o`, `squeue` or `sacct` tells it.

    `job_id`: as people name it, `12`, or `12_3` for an array member (whose `array` is then ("12", "3")); `nodes`: host names that
    the job has now, expanded; `end_time` and `start_time`: seconds since the epoch, None where unknown (of a running job
    `end_time` is its limit); `preempt_time`: since when a running job is being preempted: Slurm has sent TERM and takes the job away at
    `end_time` (GraceTime); `exit_code`: once it has ended, -N when signal N ended it; `restarts`, `avoided` (its ExcNodeList): squeue does
    not tell. Of a job that waits `start_time` is when it may begin (BeginTime), or when Slurm expects it to.
    """

    job_id: str
    name: str
    state: str
    reason: str = ""
    nodes: tuple[str, ...] = ()
    batch_host: str = ""
    restarts: int = 0
    start_time: float | None = None
    end_time: float | None = None
    exit_code: int | None = None
    partition: str = ""
    comment: str = ""
    user: str = ""
    cpus_per_node: int | None = None
    memory_per_node_bytes: int | None = None
    array: tuple[str, str] | None = None
    preempt_time: float | None = None
    avoided: tuple[str, ...] = ()

    @property
    def in_grace(self) -> bool:
        """Whether it runs only until Slurm takes its nodes for another job."""
        return self.state == "RUNNING" and self.preempt_time is not None

    @property
    def ended(self) -> bool:
        """Whether it will not run again (a requeued job is PENDING, not ended)."""
        return self.state in ENDED


@dataclass(frozen=True)
class NodeInfo:
    """One node: state words (IDLE, ALLOCATED, DOWN, DRAIN, NOT_RESPONDING, ...)."""

    name: str
    states: frozenset[str] = field(default_factory=frozenset)
    reason: str = ""
    cpus: int = 0
    memory_bytes: int = 0
    gres: str = ""
    features: tuple[str, ...] = ()

    @property
    def down(self) -> bool:
        return bool(self.states & {"DOWN", "FAIL", "FAILING", "NOT_RESPONDING", "POWERED_DOWN"})


@dataclass(frozen=True)
class NodePlace:
    """Where a node hangs in the network: its leaf switch (topology/tree) or its block (topology/block)."""

    node: str
    leaf: str = ""
    block: str = ""


@dataclass(frozen=True)
class StepInfo:
    """One step that slurmctld still knows: `step` is the part behind the job id (`0`, `batch`), `name` what --job-name said."""

    step: str
    name: str
    nodes: tuple[str, ...] = ()
