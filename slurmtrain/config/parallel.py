"""The section of the job file about the layout, and what it leaves open resolved: schedule, virtual stages, shards."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from slurmtrain.config.base import Frozen, Positive

AXES = ("tp", "cp", "ep", "dp", "pp")
"""Mesh axes, fastest first, in the default order of ranks."""
ScheduleName = Literal["gpipe", "1f1b", "interleaved", "looped-bfs", "interleaved-zero-bubble", "zbv", "dualpipev"]
DpMode = Literal["ddp", "zero1", "zero2", "fsdp"]
CpMode = Literal["ring", "allgather", "ulysses"]
LOOPED: tuple[ScheduleName, ...] = ("interleaved", "looped-bfs", "interleaved-zero-bubble")
"""Schedules of several stages a rank, stage s on rank s mod pp."""
V_SHAPED: tuple[ScheduleName, ...] = ("zbv", "dualpipev")
"""Schedules of two stages a rank, stage s and 2 pp - 1 - s on rank s."""
ZERO_BUBBLE: tuple[ScheduleName, ...] = ("interleaved-zero-bubble", "zbv", "dualpipev")
"""Schedules that make input gradients and weight gradients at different times."""


class ParallelConfig(Frozen):
    """Degrees of parallelism; dp defaults to what is left of the world."""

    tp: Positive = 1
    pp: Positive = 1
    cp: Positive = 1
    ep: Positive = 1
    dp: Positive | None = None
    dp_mode: DpMode = "ddp"
    """ddp: all on every rank; zero1: optimiser state in shards; zero2: gradients too; fsdp: weights too (ZeRO-3)."""
    dp_shard: Positive | None = None
    """Data-parallel ranks that share one copy of what dp_mode shards (HSDP: those of one node); default: all."""
    cp_mode: CpMode = "ring"
    schedule: ScheduleName | None = None
    """Default: 1f1b; interleaved where vp is more than 1."""
    vp: Positive | None = None
    """Stages of each pipeline rank; default: 1, or 2 where the schedule needs two."""
    stages: tuple[Positive, ...] | None = None
    """Layers of each of the pp x vp stages; default: cut so that the slowest stage costs least."""
    order: tuple[str, ...] = AXES
    """Axes of the world, fastest-varying first."""

    @field_validator("order")
    @classmethod
    def _every_axis_once(cls, order: tuple[str, ...]) -> tuple[str, ...]:
        if sorted(order) != sorted(AXES):
            raise ValueError(f"must name each axis once: {', '.join(AXES)}, in any order")
        return order

    def resolved_schedule(self) -> ScheduleName:
        """The schedule that is meant."""
        return self.schedule or ("interleaved" if (self.vp or 1) > 1 else "1f1b")

    def resolved_vp(self) -> int:
        """Stages of each pipeline rank that are meant."""
        return self.vp or (2 if self.pp > 1 and self.resolved_schedule() in LOOPED + V_SHAPED else 1)
