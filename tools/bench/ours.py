"""The trainer's own step as the benchmarks run it: a layout over the first ranks of a gloo world, without files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from slurmtrain.config.job import JobConfig
from slurmtrain.config.model import ModelConfig
from slurmtrain.config.plan import Plan
from slurmtrain.config.site import SiteConfig
from slurmtrain.config.training import OptimizerConfig
from slurmtrain.fabric.plan import build_plan
from slurmtrain.parallel.apply import Built, build
from slurmtrain.parallel.axis import Meter
from slurmtrain.parallel.batch import StepBatch
from slurmtrain.runtime.mesh import Mesh, build_mesh
from slurmtrain.runtime.world import World
from slurmtrain.train.optimizer import make_optimizer
from slurmtrain.train.step import Step
from slurmtrain.train.stopping import StopFlag

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Layout:
    """`parallel` and `training`: keys of the job file's sections."""

    name: str
    parallel: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ours:
    """A layout built on this rank."""

    plan: Plan
    mesh: Mesh | None
    built: Built
    step: Step
    meter: Meter

    def train(self, tokens: Tensor) -> float:
        """One step on the global batch [B, T + 1]."""
        share = tokens.chunk(self.plan.dp)[0 if self.mesh is None else self.mesh.index("data")]
        return self.step(1, StepBatch(share[:, :-1].contiguous(), share[:, 1:].contiguous())).loss


class Alone:
    """The mesh of one process, without a process group."""

    def size(self, name: str) -> int:
        del name
        return 1

    def index(self, name: str) -> int:
        del name
        return 0

    def group(self, name: str) -> None:
        del name


def plan_of(model: ModelConfig, layout: Layout, *, ranks: int, sequence: int, batch: int) -> tuple[JobConfig, Plan]:
    """The job and the plan of a layout on one node, checked as submit does."""
    training = {"steps": 100, "sequence_length": sequence, "global_batch": batch, **layout.training}
    job = JobConfig.model_validate(
        {"run": {"name": "bench"}, "model": model.model_dump(), "data": {"path": "/"}, "training": training, "parallel": layout.parallel}
    )
    return job, build_plan(job, SiteConfig(name="bench", device="cpu", node={"gpus": ranks}))


def make(model: ModelConfig, layout: Layout, *, sequence: int, batch: int) -> Ours:
    """Build a layout over all ranks of the process group; without one, over this process alone. Collective."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    job, plan = plan_of(model, layout, ranks=ranks, sequence=sequence, batch=batch)
    mesh = build_mesh(plan, world_of(plan)) if dist.is_initialized() else None
    meter = Meter(CPU)
    built = build(model, plan, mesh or Alone(), job.training, seed=1, device=CPU, meter=meter)
    optimizer = make_optimizer(built.parameters, OptimizerConfig(lr=1e-4, weight_decay=0.1))
    world = dist.group.WORLD if dist.is_initialized() else None
    step = Step(built, optimizer, lr_at=lambda _: 1e-4, clip_norm=1.0, flag=StopFlag(), world=world, data_size=plan.dp)
    return Ours(plan, mesh, built, step, meter)


def world_of(plan: Plan) -> World:
    return World(
        rank=dist.get_rank(),
        size=plan.world,
        node="n1",
        node_index=0,
        local_rank=dist.get_rank(),
        local_size=plan.world,
        device=CPU,
        comm=None,
        plan=plan,
        nodes=("n1",),
        attempt=1,
        timeout=timedelta(seconds=300),
    )


Train = Callable[[Tensor], float]
