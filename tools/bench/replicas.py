"""What it costs to compare replicas (`recovery.corruption`), beside a step of the same model: two ranks under ddp, or one GPU.

    python tools/bench/replicas.py [--json] [--hidden 512 --layers 8] [--sequence 256 --batch 8]

Rows: seconds of a step (median), of a comparison (median; checksum and gather), of the checksum alone, bytes of state that it reads, and
the share of the run's time at `every_steps` = 100.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

sys.path.insert(0, str(Path(__file__).parent))
import ours
from ours import Layout

from slurmtrain.config.model import ModelConfig
from slurmtrain.train.group import TorchGroup
from slurmtrain.train.replicas import Replicas, checksum, weighted_sum

EVERY = 100


def median_s(deed: Callable[[], object], times: int) -> float:
    """Of so many calls, after one that does not count."""
    deed()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        deed()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def measure(rank: int, folder: str, args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", args.ranks), rank=rank, world_size=args.ranks)
    model = ModelConfig(
        layers=args.layers, hidden=args.hidden, heads=8, kv_heads=8, ffn=3 * args.hidden, vocab=args.vocab, rope_theta=10000.0
    )
    made = ours.make(model, Layout("ddp"), sequence=args.sequence, batch=args.batch)
    tokens = torch.randint(args.vocab, (args.batch, args.sequence + 1), generator=torch.Generator().manual_seed(1))
    assert made.mesh is not None
    optimizer = made.step._optimizer
    group = TorchGroup(60)
    replicas = Replicas(made.built, optimizer, None, place=made.mesh.coordinates(), group=group, world=dist.group.WORLD)
    held = replicas._held()[0]
    step_s, compare_s = median_s(lambda: made.train(tokens), args.steps), median_s(replicas.compare, args.steps)
    checksum_s = median_s(lambda: checksum(held), args.steps)
    if rank == 0:
        size = sum(tensor.nbytes for tensor in held)
        row = {
            "kind": "replicas",
            "device": "cpu",
            "ranks": args.ranks,
            "parameters": sum(p.tensor.numel() for p in made.built.parameters),
            "state_bytes": size,
            "step_s": step_s,
            "compare_s": compare_s,
            "checksum_s": checksum_s,
            "gb_s": size / checksum_s / 1e9,
            "share_at_100": compare_s / (EVERY * step_s + compare_s),
        }
        Path(folder, "row").write_text(json.dumps(row))
    dist.barrier()
    dist.destroy_process_group()


def on_gpu(numbers: int) -> dict[str, object]:
    """The checksum alone, of so many fp32 numbers."""
    state = [torch.randn(numbers // 8, device="cuda") for _ in range(8)]

    def once() -> int:
        return int(weighted_sum(state))

    seconds = median_s(once, 10)
    size = sum(tensor.nbytes for tensor in state)
    return {
        "kind": "replicas",
        "device": torch.cuda.get_device_name(),
        "state_bytes": size,
        "checksum_s": seconds,
        "gb_s": size / seconds / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    for name, default in (("ranks", 2), ("hidden", 512), ("layers", 8), ("vocab", 4096), ("sequence", 256), ("batch", 8), ("steps", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(measure, (folder, args), nprocs=args.ranks)
        rows = [json.loads(Path(folder, "row").read_text())]
    if torch.cuda.is_available():
        rows.append(on_gpu(1 << 30))
    for row in rows:
        told = "  ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items())
        print(json.dumps(row) if args.json else told)


if __name__ == "__main__":
    main()
