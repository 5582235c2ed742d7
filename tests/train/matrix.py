"""The layouts of the matrix test, and what the ranks do: every layout trains as one process does."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from slurmtrain.config.model import ModelConfig
from slurmtrain.config.training import OptimizerConfig, TrainingConfig
from slurmtrain.parallel.apply import build
from slurmtrain.train.optimizer import make_optimizer
from slurmtrain.train.step import Step
from slurmtrain.train.stopping import StopFlag
from tests.mpi_world import gloo_group
from tests.parallel.layouts import CPU, MODELS, SEED, SEQUENCE, batch_of, changed, mesh_of, plan_of, share_of, world_group

STEPS, CLIP, LR, DECAY = 20, 0.5, 0.1, 0.1
GLOBAL_BATCH = 8
DEEP = changed(MODELS["llama"], layers=8)
SHAPES = {
    **MODELS,
    "deep": DEEP,
    "deep tied": changed(DEEP, tied_embeddings=True),
    "wide kv": changed(MODELS["llama"], heads=8, kv_heads=2),
}


@dataclass(frozen=True)
class Case:
    """`layout`: of `plan_of`; `training`: more keys of TrainingConfig; `documents`: several in a sequence, kept apart."""

    name: str
    layout: dict = field(default_factory=dict)
    model: str = "llama"
    training: dict = field(default_factory=dict)
    documents: bool = False

    @property
    def shape(self) -> ModelConfig:
        return SHAPES[self.model]

    @property
    def ranks(self) -> int:
        return plan_of(self.shape, **self.layout).world


def of(name, *, model="llama", documents=False, training=None, **layout) -> Case:
    return Case(name, {"global_batch": GLOBAL_BATCH, **layout}, model, training or {}, documents)


FULL, SELECTIVE = {"recompute": "full"}, {"recompute": "selective"}
QUICK = [
    of("one process", micro_batch=4),
    of("one process, qwen2", model="qwen2", micro_batch=2),
    of("one process, qwen3, recompute", model="qwen3", training=FULL),
    of("one process, gpt2, small chunks of the loss", model="gpt2", micro_batch=8, training={"loss_chunk_tokens": 5}),
    of("one process, documents", documents=True, micro_batch=4),
    of("tp2", tp=2, micro_batch=4),
    of("tp2, qwen3", tp=2, micro_batch=4, model="qwen3"),
    of("tp2, gpt2", tp=2, micro_batch=4, model="gpt2"),
    of("tp2, z-loss", tp=2, micro_batch=4, training={"z_loss": 1e-2}),
    of("tp4, copies of kv heads", tp=4, micro_batch=4),
    of("dp2, no micro-batch alike", dp=2),
    of("dp4", dp=4, micro_batch=2),
    of("dp2 zero1, tied", dp=2, dp_mode="zero1", model="tied"),
    of("dp4 zero1, hybrid", dp=4, dp_mode="zero1", dp_shard=2),
    of("dp2 zero2", dp=2, dp_mode="zero2", micro_batch=2),
    of("dp4 fsdp", dp=4, dp_mode="fsdp", micro_batch=2),
    of("dp4 fsdp, hybrid, qwen2", dp=4, dp_mode="fsdp", dp_shard=2, model="qwen2"),
    of("cp2 ring", cp=2, micro_batch=2),
    of("cp4 ring", cp=4, micro_batch=4),
    of("cp2 allgather, documents", cp=2, cp_mode="allgather", micro_batch=4, documents=True),
    of("cp2 allgather, window", cp=2, cp_mode="allgather", micro_batch=4, model="window"),
    of("cp2 ulysses, documents", cp=2, cp_mode="ulysses", micro_batch=4, documents=True),
    of("cp4 ulysses, shared kv heads", cp=4, cp_mode="ulysses", micro_batch=4),
    of("pp2 1f1b, recompute", pp=2, micro_batch=2, training=FULL),
    of("pp2 gpipe, uneven", pp=2, micro_batch=4, schedule="gpipe", stages=(3, 1)),
    of("pp2 interleaved, gpt2", pp=2, micro_batch=2, schedule="interleaved", model="gpt2"),
    of("pp2 zbv, tied", pp=2, micro_batch=2, schedule="zbv", model="tied"),
    of("pp2 dualpipev", pp=2, micro_batch=1, schedule="dualpipev"),
    of("pp2 interleaved-zero-bubble", pp=2, micro_batch=2, schedule="interleaved-zero-bubble"),
    of("pp2 looped-bfs, tied", pp=2, micro_batch=2, schedule="looped-bfs", model="tied"),
    of("pp4 1f1b, tied, micro-batches of one", pp=4, model="tied"),
    of("tp2 pp2", tp=2, pp=2, micro_batch=4),
    of("tp2 pp2 zbv, gpt2", tp=2, pp=2, micro_batch=2, schedule="zbv", model="gpt2"),
    of("tp2 dp2 fsdp, selective recompute", tp=2, dp=2, dp_mode="fsdp", micro_batch=4, training=SELECTIVE),
    of("tp2 dp2 zero1, qwen3", tp=2, dp=2, dp_mode="zero1", micro_batch=2, model="qwen3"),
    of("tp2 cp2 ring", tp=2, cp=2, micro_batch=4),
    of("tp2 cp2 allgather, copies of kv heads", tp=2, cp=2, cp_mode="allgather", micro_batch=4, model="wide kv"),
    of("dp2 cp2 ring, fsdp", dp=2, cp=2, dp_mode="fsdp", micro_batch=2),
    of("dp2 cp2 ulysses, zero1", dp=2, cp=2, cp_mode="ulysses", dp_mode="zero1", micro_batch=2),
    of("pp2 dp2 zero1, tied", pp=2, dp=2, dp_mode="zero1", model="tied"),
    of("pp2 dp2 interleaved, fsdp", pp=2, dp=2, dp_mode="fsdp", schedule="interleaved"),
    of("pp2 dp2 zbv, ddp", pp=2, dp=2, schedule="zbv"),
    of("pp2 cp2 ring, tied", pp=2, cp=2, micro_batch=2, model="tied"),
]
"""Layouts of 1 to 4 ranks."""

LONG = [
    of("tp2 pp2 dp2", tp=2, pp=2, dp=2, micro_batch=2),
    of("tp2 pp2 dp2 zero1, tied", tp=2, pp=2, dp=2, dp_mode="zero1", micro_batch=2, model="tied"),
    of("tp2 pp2 dp2 fsdp, zbv", tp=2, pp=2, dp=2, dp_mode="fsdp", schedule="zbv"),
    of("tp2 pp2 dp2 zero2, interleaved, recompute", tp=2, pp=2, dp=2, dp_mode="zero2", schedule="interleaved", training=FULL),
    of("tp2 pp2 cp2 ring", tp=2, pp=2, cp=2, micro_batch=2),
    of("tp2 pp2 cp2 ulysses, dualpipev", tp=2, pp=2, cp=2, cp_mode="ulysses", schedule="dualpipev", model="wide kv"),
    of("tp2 cp2 dp2 fsdp", tp=2, cp=2, dp=2, dp_mode="fsdp", micro_batch=2),
    of("tp2 cp2 dp2 allgather, documents, qwen3", tp=2, cp=2, dp=2, cp_mode="allgather", documents=True, model="qwen3"),
    of("pp2 cp2 dp2 zero1", pp=2, cp=2, dp=2, dp_mode="zero1", micro_batch=2),
    of("pp2 cp2 dp2 fsdp, hybrid, tied", pp=2, cp=2, dp=2, dp_mode="fsdp", dp_shard=1, micro_batch=2, model="tied"),
    of("tp4 dp2, copies of kv heads", tp=4, dp=2, micro_batch=2),
    of("tp8, copies of kv heads", tp=8, micro_batch=4, model="wide kv"),
    of("tp4 pp2", tp=4, pp=2, micro_batch=2, model="gpt2", stages=(1, 3)),
    of("pp4 dp2 1f1b", pp=4, dp=2),
    of("pp4 tp2 zbv", pp=4, tp=2, schedule="zbv", model="deep"),
    of("pp4 dp2 interleaved", pp=4, dp=2, schedule="interleaved", model="deep tied"),
    of("pp4 looped-bfs, qwen2-like depth", pp=4, schedule="looped-bfs", model="deep"),
    of("pp4 interleaved-zero-bubble, tied", pp=4, schedule="interleaved-zero-bubble", model="deep tied"),
    of("pp4 dualpipev", pp=4, schedule="dualpipev", model="deep"),
    of("pp8 1f1b, uneven", pp=8, model="deep"),
    of("pp8 gpipe", pp=8, schedule="gpipe", model="deep tied"),
    of("dp8", dp=8),
    of("dp8 zero1", dp=8, dp_mode="zero1", model="gpt2"),
    of("dp8 fsdp", dp=8, dp_mode="fsdp"),
    of("dp8 fsdp, hybrid 4", dp=8, dp_mode="fsdp", dp_shard=4, model="tied"),
    of("cp4 dp2 ring", cp=4, dp=2, micro_batch=2),
    of("cp4 tp2 allgather", cp=4, tp=2, cp_mode="allgather", micro_batch=4),
    of("cp2 dp4 ulysses, zero2", cp=2, dp=4, cp_mode="ulysses", dp_mode="zero2"),
    of("tp2 dp4 zero1, hybrid 2, selective recompute", tp=2, dp=4, dp_mode="zero1", dp_shard=2, training=SELECTIVE),
    of("tp2 dp2, order dp first", tp=2, dp=2, cp=2, order=("tp", "dp", "ep", "cp", "pp"), micro_batch=2),
]
"""Layouts of 4 to 8 ranks."""


def batches(step, model, global_batch, *, documents=False):
    """Labels very unevenly masked: some sequences have none, so that means of means would be wrong."""
    return batch_of(step, model, global_batch, ignored=0.3, documents=documents)


def train(case: Case):
    """(losses, norms, {name: whole parameter of this rank's parts}, tokens) of a layout; None on ranks outside it."""
    plan = plan_of(case.shape, **case.layout)
    mesh = mesh_of(plan)
    if mesh is None:
        return None
    training = TrainingConfig(
        steps=STEPS, sequence_length=SEQUENCE, global_batch=GLOBAL_BATCH, micro_batch=plan.micro_batch, **case.training
    )
    built = build(case.shape, plan, mesh, training, seed=SEED, device=CPU)
    optimizer = make_optimizer(built.parameters, OptimizerConfig(name="sgd", lr=LR, weight_decay=DECAY))
    step = Step(built, optimizer, lr_at=lambda _: LR, clip_norm=CLIP, flag=StopFlag(), world=world_group(plan), data_size=plan.dp)
    results = [
        step(number, share_of(batches(number, case.shape, GLOBAL_BATCH, documents=case.documents), plan, mesh))
        for number in range(1, STEPS + 1)
    ]
    parts = [
        (part.name, part.box.offset, x.tensor[tuple(slice(a, b) for a, b in part.region)].clone())
        for x in built.parameters
        for part in x.parts
    ]
    return [r.loss for r in results], [r.grad_norm for r in results], parts, [r.tokens for r in results]


def everything(names):
    """Each case in turn, in one world."""
    torch.set_num_threads(1)
    gloo_group()
    known = {case.name: case for case in QUICK + LONG}
    answers = {}
    for name in names:
        answers[name] = train(known[name])
        dist.barrier()
    return answers
