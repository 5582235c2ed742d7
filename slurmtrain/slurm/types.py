"""What slurmtrain reads from Slurm, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

ENDED = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "NODE_FAIL", "PREEMPTED", "REVOKED"}
)
"""States of a job that is not in slurmctld as pending, running or about to run again."""


@dataclass(frozen=True)
class JobInfo:
    """One job, as `scontrol show job -o` or `squeue` tells it.

    `nodes`: host names that the job has now, expanded; `end_time` and `start_time`: seconds since the epoch, None where unknown;
    `array`: (array job id, task id) of an array member.
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
    """Where a node hangs in the network: switches from the leaf up (topology/tree) or the block (topology/block)."""

    node: str
    leaf: str = ""
    block: str = ""
