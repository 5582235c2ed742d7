"""Random jobs, and what the ranks of a world do with those that the configuration checks let through."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from itertools import count, islice

import torch
import torch.distributed as dist

from slurmtrain.config.checks import check_job
from slurmtrain.config.job import JobConfig
from slurmtrain.config.parallel import AXES, ParallelConfig
from slurmtrain.config.plan import Plan
from slurmtrain.config.site import SiteConfig
from slurmtrain.errors import UserError
from slurmtrain.fabric.plan import build_plan
from slurmtrain.parallel.apply import Built, build
from slurmtrain.train.optimizer import make_optimizer
from slurmtrain.train.schedule import lr_at
from slurmtrain.train.step import Step
from slurmtrain.train.stopping import StopFlag
from tests.mpi_world import gloo_group
from tests.parallel.layouts import CPU, SEED, batch_of, mesh_of, share_of, world_group

STEPS = 3


def some_model(r: random.Random) -> dict:
    heads, family = r.choice([4, 4, 8, 6, 2]), r.choice(["llama", "llama", "qwen2", "qwen3", "gpt2"])
    kv_heads = heads if family == "gpt2" else r.choice([n for n in range(1, heads + 1) if heads % n == 0])
    shape = {"layers": r.choice([2, 4, 5, 8]), "hidden": heads * r.choice([4, 6, 8]), "heads": heads, "kv_heads": kv_heads}
    sizes = {"ffn": r.choice([20, 36, 48]), "vocab": r.choice([63, 64, 101]), "head_dim": r.choice([0, 0, 6, 10])}
    more = {"max_positions": r.choice([16, 24, 32])} if family == "gpt2" else {"rope_theta": 1000.0}
    window = {"window": r.choice([1, 3, 100])} if r.random() < 0.2 else {}
    return {"family": family, "tied_embeddings": r.random() < 0.4, **shape, **sizes, **more, **window}


def some_layout(r: random.Random) -> dict:
    mode, order = r.choice(["ddp", "zero1", "zero2", "fsdp"]), list(AXES)
    layout = {axis: r.choice([1, 1, 2, 4]) for axis in ("tp", "cp", "pp")}
    modes = {"dp_mode": mode, "cp_mode": r.choice(["ring", "allgather", "ulysses"])}
    schedules = ["gpipe", "1f1b", "interleaved", "looped-bfs", "interleaved-zero-bubble", "zbv", "dualpipev"]
    schedule = {"schedule": r.choice(schedules)} if layout["pp"] > 1 else {}
    shard = {"dp_shard": r.choice([1, 2])} if mode != "ddp" and r.random() < 0.3 else {}
    if r.random() < 0.15:
        r.shuffle(order)
    return {**layout, **modes, **schedule, **shard, "order": order}


def some_job(seed: int, ranks: int) -> JobConfig:
    """Of a number always the same job; most have something that does not fit."""
    r = random.Random(seed)
    layout, micro_batch = some_layout(r), r.choice([1, 1, 2, 3])
    dp = max(1, ranks // (layout["tp"] * layout["cp"] * layout["pp"]))
    training = {
        "steps": STEPS,
        "sequence_length": r.choice([1, 2, 8, 12, 16, 24]),
        "micro_batch": micro_batch,
        "global_batch": dp * micro_batch * r.randint(1, 8),
        "recompute": r.choice(["none", "none", "full", "selective"]),
        "loss_chunk_tokens": r.choice([1, 5, 1024]),
        "z_loss": r.choice([0.0, 1e-2]),
        "clip_norm": r.choice([1.0, 0.05]),
        "clip_norm_type": r.choice(["2", "2", "1", "inf"]),
    }
    sections = {"model": some_model(r), "training": training, "parallel": layout, "optimizer": {"name": "sgd", "lr": 0.05}}
    data = {"path": "/d", "documents": r.choice(["joined", "separate"])}
    return JobConfig.model_validate({"run": {"name": "r"}, "data": data, **sections})


def legal_jobs(first: int, ranks: int) -> Iterator[tuple[int, JobConfig, Plan]]:
    """(seed, job, plan) of the jobs that submit would take, from a seed on."""
    site = SiteConfig(name="s", device="cpu", node={"gpus": ranks})
    for seed in count(first):
        job = some_job(seed, ranks)
        try:
            check_job(job, site)
            yield seed, job, build_plan(job, site)
        except UserError:
            continue


def alone(job: JobConfig) -> tuple[JobConfig, Plan]:
    """The same job on one rank."""
    single = job.model_copy(update={"parallel": ParallelConfig()})
    return single, build_plan(single, SiteConfig(name="s", device="cpu", node={"gpus": 1}))


def train(job: JobConfig, plan: Plan) -> list[float] | None:
    """Evaluation before, losses, norms and tokens of each step, evaluation after; None on ranks outside the layout."""
    mesh, training = mesh_of(plan), job.training
    if mesh is None:
        return None
    group, built = world_group(plan), build(job.model, plan, mesh, training, seed=SEED, device=CPU)
    rate = partial(lr_at, config=job.optimizer, steps=STEPS)
    more = {"clip_norm": training.clip_norm, "norm_power": float(training.clip_norm_type), "data_size": plan.dp}
    step = Step(built, make_optimizer(built.parameters, job.optimizer), lr_at=rate, flag=StopFlag(), world=group, **more)

    def share(number: int):
        batch, documents = training.global_batch, job.data.documents == "separate"
        ignored = 0.3 if batch > 2 and training.sequence_length > 2 else 0.0
        return share_of(batch_of(number, job.model, batch, training.sequence_length, ignored=ignored, documents=documents), plan, mesh)

    told = [evaluated(built, share(99), group)]
    for number in range(1, STEPS + 1):
        result = step(number, share(number))
        told += [result.loss, result.grad_norm, float(result.tokens)]
    return [*told, evaluated(built, share(99), group)]


def evaluated(built: Built, batch, group) -> float:
    sums = torch.stack([built.evaluate(batch), built.valid_tokens(batch).double()]) * built.counts_loss
    dist.all_reduce(sums, group=group)
    return (sums[0] / sums[1].clamp(min=1)).item()


def both_ways(first: int, number: int, ranks: int):
    """(seed, job, what all ranks told, what one told) of the next legal jobs, in one world."""
    torch.set_num_threads(1)
    gloo_group()
    found = []
    for seed, job, plan in islice(legal_jobs(first, ranks), number):
        together, single = train(job, plan), train(*alone(job))
        found.append((seed, job.model_dump(mode="json", exclude_defaults=True), together, single))
        dist.barrier()
    return found
