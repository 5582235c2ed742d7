"""What the ranks of the replicas' test do: layouts one after another; a bit is flipped on one rank, then on the next."""

from __future__ import annotations

import torch.distributed as dist

from slurmtrain.train.drills import flip_bit
from slurmtrain.train.replicas import Replicas
from tests.train.worlds import Trainer, start


def compared(model, layouts):
    """{layout: what comparisons say after each of three steps, with a bit flipped on each rank in turn, and in a moment of rank 1}."""
    group = start()
    return {name: _one(Trainer(model, layout, 1.0), group) for name, layout in layouts.items()}


def _one(trainer, group):
    place = trainer.mesh.coordinates()
    replicas = Replicas(trainer.built, trainer.optimizer, None, place=place, group=group, world=dist.group.WORLD)
    equal, flipped = [], []
    for number in (1, 2, 3):
        trainer.one(number)
        equal.append(replicas.compare())
    for rank in range(dist.get_world_size()):
        largest = max((p.tensor for p in trainer.built.parameters), key=lambda tensor: tensor.numel())
        if dist.get_rank() == rank:
            flip_bit(largest, 3)
        flipped.append(replicas.compare())
        if dist.get_rank() == rank:
            flip_bit(largest, 3)
    if dist.get_rank() == 1:
        flip_bit(trainer.optimizer.states()["exp_avg"][0], 3)
    return {"equal": equal, "flipped": flipped, "moment": replicas.compare()}
