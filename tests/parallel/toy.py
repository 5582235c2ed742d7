"""A small stage whose parameters no number of ranks divides, its batches, and one process that sees all of them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from slurmtrain.boxes import Part, whole
from slurmtrain.config.model import ModelConfig
from slurmtrain.config.training import TrainingConfig
from slurmtrain.parallel.axes import axes_of
from slurmtrain.parallel.axis import Meter
from slurmtrain.parallel.data import DTYPES, make_reducer
from slurmtrain.parallel.parameters import LocalParameter
from slurmtrain.parallel.parts import Layout
from tests.parallel.layouts import CPU, mesh_of, plan_of

MODEL = ModelConfig(layers=4, hidden=32, heads=4, kv_heads=2, ffn=48, vocab=63)  # of the plans alone


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.Parameter(torch.ones(6))
        self.up, self.down = nn.Linear(6, 5), nn.Linear(5, 6, bias=False)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x * self.norm)))


class Toy(nn.Module):
    """Tokens below 7, [B, T], to a sum over them."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.layers = nn.ModuleDict({"0": Block(), "1": Block()})
        self.head = nn.Linear(6, 3, bias=False)

    def forward(self, x_BT):
        x = self.embedding(x_BT)
        for layer in self.layers.values():
            x = layer(x)
        return torch.logsumexp(self.head(x).float(), -1).sum()


def toy(*, meta=False):
    """The same first values each time."""
    with torch.random.fork_rng(), torch.device("meta" if meta else "cpu"):
        torch.manual_seed(3)
        return Toy()


def layouts_of(stage):
    shapes = {name: tuple(p.shape) for name, p in stage.named_parameters()}
    return {name: Layout(shape, (Part(name, shape, whole(shape), tuple((0, n) for n in shape)),)) for name, shape in shapes.items()}


def tokens_of(step, place, number):
    """What a data-parallel rank (its place in dp_cp) sees in one pass of a step."""
    return torch.randint(0, 7, (2, 4), generator=torch.Generator().manual_seed(10_000 * step + 100 * place + number))


def training(**fields):
    return TrainingConfig(steps=1, sequence_length=16, global_batch=8, **fields)


class Rank:
    """This rank's stage under a reducer; None outside the layout."""

    def __init__(self, layout, *, meta=False, bucket_bytes=150, metered=False, **fields):
        self.plan = plan_of(MODEL, **layout)
        mesh = mesh_of(self.plan)
        self.inside = mesh is not None
        if mesh is None:
            return
        self.axes = axes_of(mesh, Meter(CPU, active=metered))
        self.place = mesh.index("dp_cp")
        self.stage = toy(meta=meta)
        config, layouts = training(**fields), layouts_of(self.stage)
        self.reducer, self.held = make_reducer([self.stage], layouts, self.plan, self.axes, config, CPU, bucket_bytes=bucket_bytes)
        self.parameters = [
            LocalParameter(name, holder, self.held[name].parts, self.held[name].owned, decays=True)
            for name, holder in self.reducer.holders.items()
        ]
        if meta:
            self.load(dict(toy().named_parameters()))

    def load(self, values):
        with torch.no_grad():
            for parameter in self.parameters:
                for part in parameter.parts:
                    parameter.tensor[region(part)] = values[part.name][box(part)]
        self.reducer.publish()

    def gradients(self, step, passes, scale=1.0):
        self.reducer.start(passes)
        for number in range(passes):
            self.reducer.before_backward(number == passes - 1)
            (self.stage(tokens_of(step, self.place, number)) * scale).backward()
        self.reducer.finish()

    def train(self, steps, passes, lr):
        for step in range(steps):
            self.gradients(step, passes)
            with torch.no_grad():
                for parameter in self.parameters:
                    parameter.tensor.sub_(parameter.grad, alpha=lr)
            self.reducer.publish()

    def parts(self, what):
        """[(name, box offset, box stop, owned, tensor)] of the values or the gradients."""
        return [
            (part.name, part.box.offset, part.box.stop, p.owned, getattr(p, what)[region(part)].clone())
            for p in self.parameters
            for part in p.parts
        ]


def region(part):
    return tuple(slice(a, b) for a, b in part.region)


def box(part):
    return tuple(slice(a, b) for a, b in zip(part.box.offset, part.box.stop, strict=True))


def expected_gradients(places, passes, *, step=0, stage=None, dtype="fp32"):
    """Sums in fp32 over all ranks and passes, each pass's gradient in the dtype."""
    stage = stage or toy().to(DTYPES[dtype])
    total = {name: torch.zeros(p.shape) for name, p in stage.named_parameters()}
    for place in range(places):
        for number in range(passes):
            stage.zero_grad()
            stage(tokens_of(step, place, number)).backward()
            for name, p in stage.named_parameters():
                total[name] += p.grad
    return total


def expected_values(places, passes, steps, lr, dtype="fp32"):
    """fp32 masters after plain SGD, and the module that computes with them in the dtype."""
    stage = toy()
    masters = {name: p.detach().clone() for name, p in stage.named_parameters()}
    stage.to(DTYPES[dtype])
    for step in range(steps):
        for name, grad in expected_gradients(places, passes, step=step, stage=stage).items():
            masters[name] -= lr * grad
        with torch.no_grad():
            for name, p in stage.named_parameters():
                p.copy_(masters[name])
    return masters, stage


def check_parts(parts_by_rank, expected, tolerance, of=None):
    """Every part that a rank has is right, and the owned ones are each global tensor exactly once."""
    covered = {name: torch.zeros(x.shape, dtype=torch.int) for name, x in expected.items()}
    for parts in parts_by_rank:
        for name, start, stop, owned, tensor in parts:
            where = tuple(slice(a, b) for a, b in zip(start, stop, strict=True))
            largest = (of or expected)[name].abs().max()
            assert tensor.dtype == torch.float32
            assert (tensor - expected[name][where]).abs().amax() <= tolerance * largest, (name, start)
            covered[name][where] += owned
    assert all((count == 1).all() for count in covered.values()), covered


def world_sum(number):
    total = torch.as_tensor(number, dtype=torch.float64).reshape(1)
    dist.all_reduce(total)
    return total.item()
