"""From the data to the step: which samples are this rank's, and how they reach its device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slurmtrain.config.job import JobConfig
from slurmtrain.config.plan import Plan
from slurmtrain.data.loader import Batch, Batches
from slurmtrain.data.staging import Node
from slurmtrain.data.stream import evaluation_batches, open_batches
from slurmtrain.parallel.batch import StepBatch
from slurmtrain.runtime.mesh import Mesh
from slurmtrain.runtime.seeds import seed_for
from slurmtrain.runtime.world import World
from slurmtrain.train.ramp import global_batch_at


@dataclass(frozen=True)
class Feed:
    """The training's batches, and by name what gives those of an evaluation set anew."""

    batches: Batches
    sets: dict[str, Callable[[], Iterable[StepBatch]]]


def open_feed(job: JobConfig, mesh: Mesh, world: World, scratch: Path | None) -> Feed:
    """Collective where the job's data is staged. Raises DataError and ConfigError."""
    place: dict[str, Any] = {"data_rank": mesh.index("data"), "data_size": mesh.size("data"), "pin": world.device.type == "cuda"}
    job = _as_planned(job, world.plan)
    training = job.training
    batches = open_batches(
        job,
        **place,
        seed=seed_for(training.seed, purpose="data"),
        ramp=lambda step: global_batch_at(step, training),
        node=_node(world, scratch),
    )
    sets = {name: _pass_over(evaluation_batches(path, job, **place), world.device) for name, path in job.evaluation.sets.items()}
    return Feed(batches, sets)


def _as_planned(job: JobConfig, plan: Plan) -> JobConfig:
    """The job with the micro-batch of this attempt's layout, which an elastic run may have had to make smaller."""
    return job.model_copy(update={"training": job.training.model_copy(update={"micro_batch": plan.micro_batch})})


def step_batch(batch: Batch, device: torch.device) -> StepBatch:
    """[micro-batches, micro-batch, T] as [N, T] on the device."""

    def there(array: np.ndarray | None) -> Tensor | None:
        return None if array is None else torch.from_numpy(array).flatten(0, 1).to(device, non_blocking=True)

    tokens, labels = there(batch.inputs), there(batch.labels)
    assert tokens is not None
    assert labels is not None
    return StepBatch(tokens, labels, there(batch.positions), there(batch.documents))


def _pass_over(batches: Iterable[Batch], device: torch.device) -> Callable[[], Iterable[StepBatch]]:
    return lambda: (step_batch(batch, device) for batch in batches)


def _node(world: World, scratch: Path | None) -> Node:
    """Local rank 0 copies; what it tells goes to the ranks of its node, in an exchange of all ranks."""
    copier = world.node_index * world.local_size

    def share(value: Any) -> Any:
        return value if world.size == 1 else world.comm.allgather(value)[copier]

    return Node(scratch, copier=world.local_rank == 0, share=share)
