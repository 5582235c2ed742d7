"""Helpers of the tests that need process groups: meshes over a gloo world, plans, batches, and the one-process reference."""

from __future__ import annotations

import torch
import torch.distributed as dist

from slurmtrain.config.parallel import AXES
from slurmtrain.config.model import ModelConfig
from slurmtrain.config.plan import Plan
from slurmtrain.models.initial import initialise
from slurmtrain.models.llama import Llama

MODEL = ModelConfig(layers=4, hidden=32, heads=4, kv_heads=2, ffn=48, vocab=63, rope_theta=1000.0)
SEQUENCE = 16


class TorchMesh:
    """A mesh of plain torch groups: tp fastest, then dp, then pp. `ranks`: the first tp * dp * pp of the world take part."""

    def __init__(self, tp: int = 1, dp: int = 1, pp: int = 1) -> None:
        sizes = {"tp": tp, "dp": dp, "pp": pp}
        rank, world = dist.get_rank(), tp * dp * pp
        self.inside = rank < world
        places = torch.arange(world).view(pp, dp, tp)
        self._size, self._index, self._group = sizes, {}, {}
        for dim, axis in enumerate(("pp", "dp", "tp")):
            for ranks in places.movedim(dim, -1).reshape(-1, sizes[axis]).tolist():
                group = dist.new_group(ranks)
                if rank in ranks:
                    self._index[axis] = ranks.index(rank)
                    self._group[axis] = group if sizes[axis] > 1 else None
        self.world = dist.new_group(list(range(world)))

    def size(self, axis):
        return self._size[axis]

    def index(self, axis):
        return self._index[axis]

    def group(self, axis):
        return self._group[axis]


def plan_of(model: ModelConfig, *, tp=1, dp=1, pp=1, mode="ddp", global_batch=8, micro_batch=1) -> Plan:
    layers = [list(range(model.layers))[i * model.layers // pp : (i + 1) * model.layers // pp] for i in range(pp)]
    return Plan(
        world=tp * dp * pp,
        nodes=1,
        spares=0,
        gpus_per_node=tp * dp * pp,
        tp=tp,
        cp=1,
        ep=1,
        dp=dp,
        pp=pp,
        order=AXES,
        nvlink_domain="node",
        block_nodes=1,
        stages=tuple(map(tuple, layers)),
        global_batch=global_batch,
        micro_batch=micro_batch,
        microbatches=global_batch // (dp * micro_batch),
        dp_mode=mode,
    )


def batch_of(step: int, model: ModelConfig, global_batch: int = 8, sequence: int = SEQUENCE):
    """(tokens, labels), [global batch, T]."""
    tokens = torch.randint(0, model.vocab, (global_batch, sequence + 1), generator=torch.Generator().manual_seed(1000 + step))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def reference(model: ModelConfig, steps: int, *, clip=1.0, lr=1e-2, global_batch=8, decay=0.1, lr_at=None, batches=batch_of):
    """Plain one-process training. Returns losses, gradient norms, gradients of the first step by name, and the model."""
    llama = Llama(model)
    initialise(llama, model, 17)
    matrices = [p for p in llama.parameters() if p.ndim > 1]
    norms = [p for p in llama.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8)
    losses, grad_norms, first = [], [], {}
    for step in range(1, steps + 1):
        tokens, labels = batches(step, model, global_batch)
        loss = torch.nn.functional.cross_entropy(llama(tokens).flatten(0, 1), labels.flatten())
        loss.backward()
        losses.append(loss.item())
        if step == 1:
            first = {name: p.grad.clone() for name, p in llama.named_parameters()}
        grad_norms.append(torch.nn.utils.clip_grad_norm_(llama.parameters(), clip).item())
        for group in optimizer.param_groups:
            group["lr"] = lr if lr_at is None else lr_at(step)
        optimizer.step()
        optimizer.zero_grad()
    return losses, grad_norms, first, llama
