"""Helpers of the tests that need process groups: meshes over a gloo world, plans, batches, and the one-process reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from slurmtrain.boxes import Part
from slurmtrain.config.model import ModelConfig
from slurmtrain.config.parallel import AXES, LOOPED, V_SHAPED
from slurmtrain.config.plan import Plan
from slurmtrain.models.initial import initialise
from slurmtrain.parallel.axis import Axis, Meter
from slurmtrain.parallel.batch import IGNORED, StepBatch
from slurmtrain.parallel.parts import Layout
from slurmtrain.runtime.mesh import Mesh, build_mesh
from slurmtrain.runtime.world import World
from tests.parallel.plain import Plain

SEQUENCE = 16
SEED = 17
CPU = torch.device("cpu")
MODEL = ModelConfig(layers=4, hidden=32, heads=4, kv_heads=2, ffn=48, vocab=63, rope_theta=1000.0)


def changed(model: ModelConfig, **fields: object) -> ModelConfig:
    """The model with other fields, checked."""
    return ModelConfig.model_validate({**model.model_dump(), **fields})


MODELS = {
    "llama": MODEL,
    "tied": changed(MODEL, tied_embeddings=True),
    "qwen2": changed(MODEL, family="qwen2"),
    "qwen3": changed(MODEL, family="qwen3", head_dim=12),
    "gpt2": changed(MODEL, family="gpt2", kv_heads=4, max_positions=24, tied_embeddings=True),
    "window": changed(MODEL, window=5),
}
"""One of each family, and what cuts across families; 63 tokens: no tp divides the vocabulary."""


def plan_of(
    model: ModelConfig,
    *,
    tp: int = 1,
    cp: int = 1,
    ep: int = 1,
    dp: int = 1,
    pp: int = 1,
    vp: int | None = None,
    schedule: str | None = None,
    stages: Sequence[int] | None = None,
    dp_mode: str = "ddp",
    dp_shard: int | None = None,
    cp_mode: str = "ring",
    order: Sequence[str] = AXES,
    global_batch: int = 8,
    micro_batch: int = 1,
) -> Plan:
    """A plan on one node. `stages`: layers of each stage; default: as even as can be, the later ones more."""
    schedule = schedule or ("interleaved" if (vp or 1) > 1 else "1f1b")
    vp = vp or (2 if pp > 1 and schedule in LOOPED + V_SHAPED else 1)
    count = pp * vp
    ends = [model.layers * (i + 1) // count for i in range(count)]
    sizes = stages or [end - start for start, end in zip([0, *ends], ends, strict=False)]
    world = tp * cp * dp * pp
    return Plan(
        world=world,
        nodes=1,
        spares=0,
        gpus_per_node=world,
        tp=tp,
        cp=cp,
        ep=ep,
        dp=dp,
        pp=pp,
        order=tuple(order),
        nvlink_domain="node",
        block_nodes=1,
        stages=tuple(tuple(range(sum(sizes[:i]), sum(sizes[: i + 1]))) for i in range(count)),
        global_batch=global_batch,
        micro_batch=micro_batch,
        microbatches=global_batch // (dp * micro_batch),
        dp_mode=dp_mode,
        dp_shard=dp_shard,
        cp_mode=cp_mode,
        schedule=schedule,
        vp=vp,
    )


def world_of(plan: Plan) -> World:
    """The first `plan.world` ranks of the process group as a world of one node, without MPI."""
    rank, timeout = dist.get_rank(), timedelta(seconds=60)
    place = {"node": "n1", "node_index": 0, "local_rank": rank, "local_size": plan.world, "nodes": ("n1",), "attempt": 1}
    return World(rank=rank, size=plan.world, device=CPU, comm=None, plan=plan, timeout=timeout, **place)  # type: ignore[arg-type]


def mesh_of(plan: Plan) -> Mesh | None:
    """The real mesh over the first `plan.world` ranks of a `gloo_group`; None on the ranks outside. All ranks must call it."""
    _level_group_counts()
    return build_mesh(plan, world_of(plan)) if dist.get_rank() < plan.world else None


def _level_group_counts() -> None:
    """torch names a group after its ranks and the number of groups made so far, which layouts smaller than the world let differ."""
    made = len(dist.distributed_c10d._world.pg_names)
    most = torch.tensor(made)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    for _ in range(int(most) - made):
        dist.new_group([dist.get_rank()], use_local_synchronization=True)


def world_group(plan: Plan) -> dist.ProcessGroup:
    """The group of the layout's ranks (on these alone, after `mesh_of`): what a step reduces over."""
    if plan.world == dist.get_world_size():
        return dist.group.WORLD
    return dist.new_group(list(range(plan.world)), use_local_synchronization=True)


def axis_of(mesh: Mesh, name: str, meter: Meter | None = None) -> Axis | None:
    """A mesh axis as `parallel` takes it; None where this rank is alone."""
    group = mesh.group(name)
    if group is None:
        return None
    return Axis(name, group, mesh.size(name), mesh.index(name), meter or Meter(CPU, active=False))


def whole_axis(name: str = "tp") -> Axis:
    """All ranks of the process group as one axis."""
    return Axis(name, dist.group.WORLD, dist.get_world_size(), dist.get_rank(), Meter(CPU, active=False))


def batch_of(
    step: int, model: ModelConfig, global_batch: int = 8, sequence: int = SEQUENCE, *, ignored: float = 0.0, documents: bool = False
) -> StepBatch:
    """The global batch of a step, [global batch, T], before any cut.

    `ignored`: share of the labels without loss, very different from sequence to sequence (the first has no label at all).
    `documents`: several a sequence, with their own positions; then also no label from one document to the next.
    """
    generator = torch.Generator().manual_seed(1000 + step)
    tokens = torch.randint(0, model.vocab, (global_batch, sequence + 1), generator=generator)
    inputs, labels = tokens[:, :-1].clone(), tokens[:, 1:].clone()
    if ignored:
        share = torch.linspace(0, 2 * ignored, global_batch)[:, None]
        labels[torch.rand(labels.shape, generator=generator) < share] = IGNORED
        labels[0] = IGNORED
    if not documents:
        return StepBatch(inputs, labels)
    starts = torch.rand(inputs.shape, generator=generator) < 0.2
    starts[:, 0] = True
    place = torch.arange(sequence).expand_as(inputs)
    positions = place - torch.where(starts, place, 0).cummax(1).values
    labels[:, :-1][starts[:, 1:]] = IGNORED
    return StepBatch(inputs, labels, positions, starts.long().cumsum(1))


def share_of(batch: StepBatch, plan: Plan, mesh: Mesh) -> StepBatch:
    """The sequences of this rank's data-parallel index (whole sequences: cp's cut comes after)."""
    return batch.map(lambda x: x.chunk(plan.dp)[mesh.index("data")].contiguous())


class Reference(NamedTuple):
    """One-process training: mean losses and norms before clipping by step, gradients of the first step by name, the trained model."""

    losses: list[float]
    norms: list[float]
    gradients: dict[str, torch.Tensor]
    module: Plain


def reference(
    model: ModelConfig,
    steps: int = 1,
    *,
    clip: float = 1.0,
    norm_type: float = 2.0,
    lr: float = 1e-2,
    decay: float = 0.1,
    optimizer: str = "adamw",
    lr_at: Callable[[int], float] | None = None,
    global_batch: int = 8,
    batches: Callable[..., StepBatch] = batch_of,
    z_loss: float = 0.0,
    module: Plain | None = None,
) -> Reference:
    """Plain torch on the whole batch: loss per valid token, clipped, AdamW (0.9, 0.95) or SGD.

    `module`: first values; default: those that every layout starts from.
    """
    module = first_module(model) if module is None else module
    groups = [
        {"params": [p for p in module.parameters() if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in module.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    torch_optimizer = (
        torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8) if optimizer == "adamw" else torch.optim.SGD(groups, lr=lr)
    )
    losses, norms, gradients = [], [], {}
    for step in range(1, steps + 1):
        loss = mean_loss(module, batches(step, model, global_batch), z_loss)
        loss.backward()
        losses.append(loss.item())
        if step == 1:
            gradients = {name: p.grad.clone() for name, p in module.named_parameters()}
        norms.append(torch.nn.utils.clip_grad_norm_(module.parameters(), clip, norm_type).item())
        for group in torch_optimizer.param_groups:
            group["lr"] = lr if lr_at is None else lr_at(step)
        torch_optimizer.step()
        torch_optimizer.zero_grad()
    return Reference(losses, norms, gradients, module)


def first_module(model: ModelConfig, seed: int = SEED) -> Plain:
    """The plain model with the first values that every layout starts from."""
    module = Plain(model)
    initialise(module, model, seed)
    return module


def mean_loss(module: Plain, batch: StepBatch, z_loss: float = 0.0) -> torch.Tensor:
    """Cross-entropy (and z-loss) per valid token."""
    logits = module(batch.tokens_NT, batch.positions_NT, batch.documents_NT)
    valid = batch.labels_NT != IGNORED
    loss = torch.nn.functional.cross_entropy(logits[valid], batch.labels_NT[valid])
    return loss + z_loss * logits[valid].logsumexp(-1).square().mean()


def vary(module: torch.nn.Module, seed: int = 5) -> None:
    """First values as no initialisation gives them: norms that are not one, biases that are not zero, matrices that are not tiny."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(3.0).add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)) * 0.1)
            seed += 1


def copy_in(local: torch.Tensor, layout: Layout, whole: Mapping[str, torch.Tensor]) -> None:
    """Write a local parameter's parts from the global tensors."""
    with torch.no_grad():
        for part in layout.parts:
            local[tuple(slice(a, b) for a, b in part.region)].copy_(box_of(whole[part.name], part))


def box_of(whole: torch.Tensor, part: Part) -> torch.Tensor:
    """The part's box of the global tensor."""
    return whole[tuple(slice(a, b) for a, b in zip(part.box.offset, part.box.stop, strict=True))]
