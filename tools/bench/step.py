#!/usr/bin/env python3
"""Speed of a training step, side by side in one run: medians, and ratios to the simplest correct program for the same thing.

    tools/bench/step.py peers   [--ranks 2,4] [--hidden 256] [--layers 4] [--sequence 128] [--batch 8] [--steps 5] [--rounds 3]
    tools/bench/step.py scaling [--ranks 1,2,4,8]
    tools/bench/step.py schedules [--ranks 2,4]

peers: one process (fp32, bf16) against a plain loop over transformers' Llama; DP, TP, PP and CP on several ranks against plain DDP,
FSDP2, DTensor's parallelize_module, bare torch.distributed.pipelining, and a ring in a plain loop (peers.py). A ratio above 1 says
that ours is faster. scaling: tokens/s of one and more ranks, the batch the same (strong) or per rank (weak), the share of the step
spent waiting for collectives, and the memory peak beside what weights, gradients and optimiser take by formula.
schedules: measured bubble beside the formula.

Ranks are processes of this machine over gloo, one thread each. Contenders take turns step by step, so that what else the machine does
falls on all alike. With fewer cores than ranks no layout can be faster than one process with as many threads as there are cores.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE)]
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import ours
import peers
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from ours import Layout

from slurmtrain.config.model import ModelConfig

Contender = tuple[str, Callable[[], Callable[[torch.Tensor], float]]]


def model_of(args: argparse.Namespace) -> ModelConfig:
    return ModelConfig(layers=args.layers, hidden=args.hidden, heads=8, kv_heads=8, ffn=args.hidden * 11 // 4, vocab=512)


def tokens_of(args: argparse.Namespace, batch: int | None = None) -> torch.Tensor:
    return torch.randint(0, 512, (batch or args.batch, args.sequence + 1), generator=torch.Generator().manual_seed(1))


def mine(args: argparse.Namespace, name: str, training: dict[str, Any] | None = None, **parallel: Any) -> Contender:
    """Our layout as a contender."""
    layout = Layout(name, parallel, training or {})
    return name, lambda: ours.make(model_of(args), layout, sequence=args.sequence, batch=args.batch).train


def pairs_of(ranks: int, args: argparse.Namespace) -> list[tuple[Contender, Contender]]:
    """(ours, the peer's) on so many ranks."""
    model, batch = model_of(args), args.batch
    if ranks == 1:
        whole = {"micro_batch": batch}
        return [
            (mine(args, "one process fp32", whole), ("transformers fp32", lambda: peers.make_one_process(model, bf16=False))),
            (
                mine(args, "one process bf16", {**whole, "dtype": "bf16"}),
                ("transformers bf16 autocast", lambda: peers.make_one_process(model, bf16=True)),
            ),
        ]
    share, microbatches = {"micro_batch": batch // ranks}, max(ranks, 4)
    piped = {"micro_batch": max(1, batch // microbatches)}
    return [
        (mine(args, f"dp{ranks} ddp", share), ("plain DDP", lambda: peers.make_ddp(model))),
        (mine(args, f"dp{ranks} zero1", share, dp_mode="zero1"), ("plain DDP", lambda: peers.make_ddp(model))),
        (mine(args, f"dp{ranks} fsdp", share, dp_mode="fsdp"), ("plain FSDP2", lambda: peers.make_fsdp(model))),
        (mine(args, f"tp{ranks}", {"micro_batch": batch}, tp=ranks), ("parallelize_module", lambda: peers.make_dtensor_tp(model))),
        (
            mine(args, f"pp{ranks} 1f1b", piped, pp=ranks),
            ("bare 1F1B", lambda: peers.make_bare_pipeline(model, batch // piped["micro_batch"])),
        ),
        (mine(args, f"cp{ranks} ring", {"micro_batch": batch}, cp=ranks), ("plain ring", lambda: peers.make_plain_ring(model))),
    ]


def race(contenders: Sequence[Contender], args: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of each step of all contenders, which take turns."""
    trains = [(name, make()) for name, make in contenders]
    tokens = tokens_of(args)
    seconds: dict[str, list[float]] = {name: [] for name, _ in trains}
    for number in range(args.steps + 1):
        for name, train in trains:
            if dist.is_initialized():
                dist.barrier()
            start = time.perf_counter()
            train(tokens)
            if number:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def in_world(ranks: int, work: Callable[..., Any], args: argparse.Namespace, *more: Any) -> Any:
    """Rank 0's answer of `work(args, *more)` in a world of so many processes (one: two threads more are not taken either)."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (ranks, folder, work, args, more), nprocs=ranks)
        return torch.load(f"{folder}/answer", weights_only=False)


def worker(rank: int, ranks: int, folder: str, work: Callable[..., Any], args: argparse.Namespace, more: tuple[Any, ...]) -> None:
    torch.set_num_threads(args.threads if ranks == 1 else 1)
    if ranks > 1:
        dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", ranks), rank=rank, world_size=ranks)
    answer = work(args, *more)
    if rank == 0:
        torch.save(answer, f"{folder}/answer")
    if ranks > 1:
        dist.barrier()
        os._exit(0)


def race_pair(args: argparse.Namespace, ranks: int, index: int) -> dict[str, list[float]]:
    return race(pairs_of(ranks, args)[index], args)


def run_peers(args: argparse.Namespace) -> None:
    print(f"{'ours':<18} {'step_s':>8} {'tokens/s':>9}   {'peer':<28} {'step_s':>8}   {'ours / peer':>11}")
    for ranks in sorted({1, *args.ranks}):
        for index, ((name, _), (peer, _)) in enumerate(pairs_of(ranks, args)):
            seconds: dict[str, list[float]] = {name: [], peer: []}
            for _ in range(args.rounds):
                for key, times in in_world(ranks, race_pair, args, ranks, index).items():
                    seconds[key] += times
            here, there = (statistics.median(seconds[key]) for key in (name, peer))
            tokens = args.batch * args.sequence / here
            print(f"{name:<18} {here:8.4f} {tokens:9.0f}   {peer:<28} {there:8.4f}   {there / here:11.2f}", flush=True)


SCALED = {
    "dp": lambda n, batch: Layout(f"dp{n}", {}, {"micro_batch": batch // n}),
    "tp": lambda n, batch: Layout(f"tp{n}", {"tp": n}, {"micro_batch": batch}),
    "pp": lambda n, batch: Layout(f"pp{n}", {"pp": n}, {"micro_batch": max(1, batch // max(4, n))}),
    "cp": lambda n, batch: Layout(f"cp{n}", {"cp": n}, {"micro_batch": batch}),
    "fsdp": lambda n, batch: Layout(f"fsdp{n}", {"dp_mode": "fsdp"}, {"micro_batch": batch // n}),
}


def measure_scaling(args: argparse.Namespace, layout: Layout, batch: int) -> dict[str, float]:
    """Median step, share of it spent waiting for collectives on rank 0, and what the process's memory grew by."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    built = ours.make(model_of(args), layout, sequence=args.sequence, batch=batch)
    tokens = tokens_of(args, batch)
    seconds, waits = [], []
    for number in range(args.steps + 1):
        if dist.is_initialized():
            dist.barrier()
        built.meter.take()
        start = time.perf_counter()
        built.train(tokens)
        if number:
            seconds.append(time.perf_counter() - start)
            waits.append(sum(built.meter.take().values()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    state = sum(p.tensor.numel() for p in built.built.parameters) * 16
    return {"step_s": statistics.median(seconds), "wait": statistics.median(waits), "peak": peak - before, "state": state}


def run_scaling(args: argparse.Namespace) -> None:
    print(f"{os.cpu_count()} cores; weights, gradients and two moments in fp32: 16 bytes for each of a rank's parameters")
    for kind in ("strong", "weak"):
        print(f"\n{kind} scaling")
        print(f"{'layout':<8} {'batch':>5} {'step_s':>8} {'tokens/s':>9} {'x one':>6} {'waiting':>8} {'peak MB':>8} {'state MB':>9}")
        base = None
        for ranks in args.ranks:
            for axis, make in SCALED.items():
                if ranks == 1 and axis != "dp":
                    continue
                batch = args.batch if kind == "strong" else args.batch * ranks
                found = in_world(ranks, measure_scaling, args, make(ranks, batch), batch)
                rate = batch * args.sequence / found["step_s"]
                base = base or rate
                wait = found["wait"] / found["step_s"]
                sizes = f"{found['peak'] / 2**20:8.0f} {found['state'] / 2**20:9.0f}"
                print(
                    f"{make(ranks, batch).name:<8} {batch:5d} {found['step_s']:8.4f} {rate:9.0f} {rate / base:6.2f} {wait:8.0%} {sizes}",
                    flush=True,
                )


def measure_bubble(args: argparse.Namespace, schedule: str) -> tuple[float, float]:
    from slurmtrain.parallel.bubble import expected_bubble

    layout = Layout(schedule, {"pp": dist.get_world_size(), "schedule": schedule}, {"micro_batch": 1})
    built = ours.make(model_of(args), layout, sequence=args.sequence, batch=args.batch)
    tokens, seen = tokens_of(args), []
    for _ in range(args.steps + 1):
        built.train(tokens)
        share = torch.tensor(built.built.runner.take_bubble() or 0.0)
        dist.all_reduce(share, op=dist.ReduceOp.MAX)
        seen.append(share.item())
    plan = built.plan
    return statistics.median(seen[1:]), expected_bubble(plan.schedule, plan.pp, plan.vp, args.batch)


def run_schedules(args: argparse.Namespace) -> None:
    print(f"{'schedule':<26} {'ranks':>5} {'bubble':>7} {'formula':>8}")
    for ranks in [ranks for ranks in args.ranks if ranks > 1]:
        for schedule in ("gpipe", "1f1b", "interleaved", "looped-bfs", "interleaved-zero-bubble", "zbv", "dualpipev"):
            measured, formula = in_world(ranks, measure_bubble, args, schedule)
            print(f"{schedule:<26} {ranks:5d} {measured:7.0%} {formula:8.0%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("peers", "scaling", "schedules"))
    parser.add_argument("--ranks", type=lambda text: [int(n) for n in text.split(",")], default=[2, 4])
    for name, default in {"hidden": 256, "layers": 4, "sequence": 128, "batch": 8, "steps": 5, "rounds": 3, "threads": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    {"peers": run_peers, "scaling": run_scaling, "schedules": run_schedules}[args.what](args)


if __name__ == "__main__":
    main()
