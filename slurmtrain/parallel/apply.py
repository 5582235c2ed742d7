"""Builds what a rank trains from model, plan and mesh. This module alone knows the order in which the pieces go together:

layouts of the local parameters (tp, pp) -> modules (for FSDP2 without memory) -> FSDP2 around blocks and root, then memory -> first values
-> buckets of replicas -> the schedule of micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from slurmtrain.config.model import ModelConfig
from slurmtrain.config.plan import Plan
from slurmtrain.parallel.data import Replicas, shard, synchronise
from slurmtrain.parallel.decoder import Matmul, Stage
from slurmtrain.parallel.parameters import LocalParameter, sum_partial
from slurmtrain.parallel.parts import Layout, shard_rows, stage_layouts
from slurmtrain.parallel.pipeline import InTurn, OneForwardOneBackward, Place, Schedule


class Mesh(Protocol):
    """Where this rank stands on each axis."""

    def size(self, axis: str) -> int: ...

    def index(self, axis: str) -> int: ...

    def group(self, axis: str) -> dist.ProcessGroup | None:
        """None where the axis has size 1."""


@dataclass(frozen=True)
class Built:
    """A rank's share of the model, ready to train."""

    stage: Stage
    parameters: tuple[LocalParameter, ...]
    schedule: Schedule
    replicas: Replicas | None
    tp_group: dist.ProcessGroup | None
    counts_loss: bool
    """Whether this rank's loss and tokens count in sums over the world: last stage, first of its tensor-parallel group."""

    def forward_backward(self, tokens_NT: Tensor, labels_NT: Tensor) -> Tensor:
        """One step's passes over this rank's N = micro-batches x micro-batch sequences of T tokens.

        Afterwards every gradient is that of the mean loss over the global batch's tokens, summed over all axes. Returns the sum of
        the loss over this rank's tokens (float64).
        """
        if self.replicas is not None:
            self.replicas.start()
        else:
            for parameter in self.parameters:
                parameter.source.grad = None
        loss_sum = self.schedule.run(tokens_NT, labels_NT)
        if self.replicas is not None:
            self.replicas.finish()
        sum_partial(self.parameters, self.tp_group)
        return loss_sum


def build(
    model: ModelConfig, plan: Plan, mesh: Mesh, *, sequence_length: int, seed: int, device: torch.device, matmul: Matmul = functional.linear
) -> Built:
    """Make this rank's stage with its first values."""
    index, count = mesh.index("pp"), plan.pp
    layers, first, last = plan.stages[index], index == 0, index == count - 1
    layouts = stage_layouts(model, layers, first=first, last=last, index=mesh.index("tp"), size=plan.tp)
    dp_group = mesh.group("dp")
    fsdp = plan.dp_mode == "fsdp" and dp_group is not None
    with torch.device("meta" if fsdp else device):
        stage = Stage(model, layers, layouts, last=last, group=mesh.group("tp"), matmul=matmul)
    if fsdp:
        assert dp_group is not None
        shard(stage, list(stage.layers.values()), dp_group, device, keep_unsharded=count > 1)
        stage.to_empty(device=device)
    stage.prepare(sequence_length, device)
    parameters = local_parameters(stage, layouts, mesh, fsdp=fsdp)
    for parameter in parameters:
        parameter.initialise(model, seed)
    replicas = None
    if dp_group is not None and not fsdp:
        replicas = Replicas([p.source for p in parameters], plan.microbatches, dp_group)
    schedule = _schedule(stage, plan, mesh, sequence_length=sequence_length, device=device, fsdp=fsdp)
    return Built(stage, parameters, schedule, replicas, mesh.group("tp"), last and mesh.index("tp") == 0)


def local_parameters(stage: Stage, layouts: Mapping[str, Layout], mesh: Mesh, *, fsdp: bool) -> tuple[LocalParameter, ...]:
    """The stage's parameters with their parts, in the order of the forward pass."""
    sources = dict(stage.named_parameters())
    assert set(sources) == set(layouts), set(sources) ^ set(layouts)
    parameters = []
    for name, layout in layouts.items():
        partial = "tp" in layout.copies and mesh.size("tp") > 1
        copied = Layout(layout.shape, layout.parts, layout.copies | {"dp"})
        held = shard_rows(layout, mesh.index("dp"), mesh.size("dp")) if fsdp else copied
        parameters.append(LocalParameter(name, sources[name], held.parts, held.owned(mesh.index), partial))
    return tuple(parameters)


def _schedule(stage: Stage, plan: Plan, mesh: Mesh, *, sequence_length: int, device: torch.device, fsdp: bool) -> Schedule:
    scale = 1.0 / (plan.global_batch * sequence_length)
    if plan.pp == 1:

        def before_backward(number: int) -> None:
            if fsdp:
                synchronise(stage, number == plan.microbatches - 1)

        return InTurn(stage, plan.microbatches, scale, before_backward)
    group = mesh.group("pp")
    assert group is not None
    shape = (sequence_length // plan.tp, plan.micro_batch, stage.model.hidden)
    place = Place(mesh.index("pp"), plan.pp, group, device)
    return OneForwardOneBackward(stage, place, microbatches=plan.microbatches, scale=scale, boundary_shape=shape)
