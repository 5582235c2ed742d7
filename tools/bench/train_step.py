#!/usr/bin/env python3
"""Speed of a training step under several layouts, as ratios to one process, and DDP against FSDP2; all in one run.

    tools/bench/train_step.py [--hidden 256] [--layers 4] [--sequence 128] [--batch 8] [--steps 6] [--rounds 3] [--ranks 4]

Ranks are processes of this machine over gloo, one thread each. Rounds go through all layouts in turn, so that what else the machine
does falls on all alike; of each layout the median step counts. With fewer cores than ranks a layout cannot be faster than one
process with as many threads: read the ratios between layouts of the same number of ranks.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from slurmtrain.config.parallel import AXES
from slurmtrain.config.training import OptimizerConfig
from slurmtrain.config.model import ModelConfig
from slurmtrain.config.plan import Plan
from slurmtrain.fabric.layout import stages
from slurmtrain.parallel.apply import build
from slurmtrain.runtime.mesh import build_mesh
from slurmtrain.runtime.world import World
from slurmtrain.train.optimizer import AdamW
from slurmtrain.train.step import Step
from slurmtrain.train.stopping import StopFlag


@dataclass(frozen=True)
class Layout:
    name: str
    tp: int = 1
    pp: int = 1
    dp: int = 1
    mode: str = "ddp"

    @property
    def ranks(self) -> int:
        return self.tp * self.pp * self.dp


LAYOUTS = (
    Layout("one process"),
    Layout("tp2", tp=2),
    Layout("pp2", pp=2),
    Layout("dp2 ddp", dp=2),
    Layout("dp2 fsdp", dp=2, mode="fsdp"),
    Layout("tp2 pp2", tp=2, pp=2),
    Layout("tp2 dp2 ddp", tp=2, dp=2),
    Layout("tp2 dp2 fsdp", tp=2, dp=2, mode="fsdp"),
    Layout("pp2 dp2 ddp", pp=2, dp=2),
    Layout("pp2 dp2 fsdp", pp=2, dp=2, mode="fsdp"),
)


def plan_of(layout: Layout, model: ModelConfig, args: argparse.Namespace) -> Plan:
    microbatches = max(2, layout.pp) if layout.pp > 1 else 1
    return Plan(
        world=layout.ranks,
        nodes=1,
        spares=0,
        gpus_per_node=layout.ranks,
        tp=layout.tp,
        cp=1,
        ep=1,
        dp=layout.dp,
        pp=layout.pp,
        order=AXES,
        nvlink_domain="node",
        block_nodes=1,
        stages=stages(model.layers, layout.pp),
        global_batch=args.batch,
        micro_batch=args.batch // (layout.dp * microbatches),
        microbatches=microbatches,
        dp_mode=layout.mode,
    )


def worker(rank: int, ranks: int, folder: str, layouts: list[Layout], args: argparse.Namespace) -> None:
    """Times all layouts of `ranks` ranks, one round; rank 0 leaves the seconds of each step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", ranks), rank=rank, world_size=ranks)
    model = ModelConfig(layers=args.layers, hidden=args.hidden, heads=8, kv_heads=4, ffn=args.hidden * 11 // 4, vocab=512)
    seconds = {layout.name: timed(layout, plan_of(layout, model, args), model, rank, args) for layout in layouts}
    if rank == 0:
        torch.save(seconds, f"{folder}/seconds")
    dist.destroy_process_group()


def timed(layout: Layout, plan: Plan, model: ModelConfig, rank: int, args: argparse.Namespace) -> list[float]:
    world = World(
        rank=rank,
        size=layout.ranks,
        node="n1",
        node_index=0,
        local_rank=rank,
        local_size=layout.ranks,
        device=torch.device("cpu"),
        comm=None,
        plan=plan,
        nodes=("n1",),
        attempt=1,
        timeout=timedelta(seconds=300),
    )
    mesh = build_mesh(plan, world)
    built = build(model, plan, mesh, sequence_length=args.sequence, seed=1, device=world.device)
    optimizer = AdamW(built.parameters, OptimizerConfig())
    step = Step(built, optimizer, lr_at=lambda _: 1e-4, clip_norm=1.0, flag=StopFlag(), world=dist.group.WORLD)
    tokens = torch.randint(0, model.vocab, (args.batch, args.sequence + 1), generator=torch.Generator().manual_seed(1))
    share = tokens.chunk(plan.dp)[mesh.index("dp")]
    seconds = []
    for number in range(args.steps + 2):
        dist.barrier()
        start = time.perf_counter()
        step(number + 1, share[:, :-1].contiguous(), share[:, 1:].contiguous())
        seconds.append(time.perf_counter() - start)
    return seconds[2:]


def measure(args: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of every step of every layout, over all rounds."""
    seconds: dict[str, list[float]] = {layout.name: [] for layout in LAYOUTS if layout.ranks <= args.ranks}
    for _ in range(args.rounds):
        for ranks in sorted({layout.ranks for layout in LAYOUTS if layout.ranks <= args.ranks}):
            chosen = [layout for layout in LAYOUTS if layout.ranks == ranks]
            with tempfile.TemporaryDirectory() as folder:
                mp.spawn(worker, (ranks, folder, chosen, args), nprocs=ranks)
                for name, times in torch.load(f"{folder}/seconds").items():
                    seconds[name] += times
    return seconds


def report(seconds: dict[str, list[float]], tokens: int) -> None:
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    one = medians["one process"]
    print(f"{'layout':<14} {'step_s':>8} {'tokens/s':>9} {'x one process':>14}")
    for name, median in medians.items():
        print(f"{name:<14} {median:8.4f} {tokens / median:9.0f} {one / median:14.2f}")
    for name in [name for name in medians if name.endswith("fsdp")]:
        print(f"{name}: {medians[name.replace('fsdp', 'ddp')] / medians[name]:.2f} x the speed of ddp")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"hidden": 256, "layers": 4, "sequence": 128, "batch": 8, "steps": 6, "rounds": 3, "ranks": 4}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    report(measure(args), args.batch * args.sequence)


if __name__ == "__main__":
    main()
