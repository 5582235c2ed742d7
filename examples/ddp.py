"""A plain DDP script as torchrun runs it: `torchrun --nproc-per-node 2 examples/ddp.py --out /tmp/ddp`. It knows nothing of slurmtrain."""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--every", type=int, default=20)
parser.add_argument("--pause", type=float, default=0.0)
args = parser.parse_args()

cuda = torch.cuda.is_available()
dist.init_process_group("nccl" if cuda else "gloo")
rank, world, device = dist.get_rank(), dist.get_world_size(), torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else "cpu"
torch.manual_seed(0)
layers = torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1))
model = DistributedDataParallel(layers.to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
saved = sorted(args.out.glob("step-*.pt"))
state = torch.load(saved[-1], map_location=device) if saved else {"step": 0}
if saved:
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])

for step in range(state["step"] + 1, args.steps + 1):
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(step * world + rank)).to(device)
    loss = (model(x) - x.sum(dim=1, keepdim=True).sin()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dist.all_reduce(mean := loss.detach() / world)
    if rank == 0:
        print(f"step {step} loss {mean.item():.9f}", flush=True)
        if step % args.every == 0 or step == args.steps:
            now = {"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(now, args.out / "saving")
            (args.out / "saving").rename(args.out / f"step-{step:08d}.pt")
    time.sleep(args.pause)
dist.destroy_process_group()
