"""What the ranks of the trainer's multi-layout tests do: many layouts one after another in one world of four."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from slurmtrain.checkpoint.state import load_checkpoint, save_checkpoint
from slurmtrain.config.training import LossScale, OptimizerConfig, TrainingConfig
from slurmtrain.parallel.apply import build
from slurmtrain.rundir import RunDir
from slurmtrain.runtime.seeds import rng_state, seed_for, set_rng_state
from slurmtrain.store.listing import newest_verified
from slurmtrain.train.group import TorchGroup
from slurmtrain.train.optimizer import make_optimizer
from slurmtrain.train.scaler import LossScaler
from slurmtrain.train.state import owned, place_name, rng_entries, wanted
from slurmtrain.train.step import Step
from slurmtrain.train.stopping import StopFlag
from tests.mpi_world import gloo_group
from tests.parallel.layouts import CPU, SEED, SEQUENCE, batch_of, mesh_of, plan_of, share_of, world_group

LR = 1e-3
"""At 1e-2 one process with its batch in another order is already off by 5e-3 after 20 steps: Adam makes whole steps of rounding noise."""


class Trainer:
    """One layout, ready to train on the batches of `batch_of`. `training`: more keys of TrainingConfig."""

    def __init__(self, model, layout, clip, training=None):
        self.plan, self.model = plan_of(model, **layout), model
        self.mesh = mesh_of(self.plan)
        if self.mesh is None:
            return
        self.world = world_group(self.plan)
        fields = {"steps": 100, "sequence_length": SEQUENCE, "global_batch": 8, "micro_batch": self.plan.micro_batch, **(training or {})}
        self.training = TrainingConfig(**fields)
        self.built = build(model, self.plan, self.mesh, self.training, seed=SEED, device=CPU)
        self.optimizer = make_optimizer(self.built.parameters, OptimizerConfig(lr=LR))
        self.flag = StopFlag()
        self.scaler = LossScaler(self.training.loss_scale) if self.training.dtype == "fp16" else None
        self.step = Step(
            self.built,
            self.optimizer,
            lr_at=lambda _: LR,
            clip_norm=clip,
            flag=self.flag,
            world=self.world,
            data_size=self.plan.dp,
            scaler=self.scaler,
        )
        torch.manual_seed(seed_for(1, **self.mesh.coordinates(), purpose="sharded"))

    def one(self, number):
        return self.step(number, share_of(batch_of(number, self.model), self.plan, self.mesh))

    def train(self, first, last):
        """(loss, norm) of steps first..last; None on ranks outside the layout."""
        if self.mesh is None:
            return None
        results = [self.one(number) for number in range(first, last + 1)]
        assert {result.tokens for result in results} == {8 * SEQUENCE}
        return [(result.loss, result.grad_norm) for result in results]

    def generators(self, states):
        return rng_entries(place_name(self.mesh.coordinates()), states)

    def save(self, run, step, group):
        save_checkpoint(
            run,
            step=step,
            attempt=1,
            tokens=0,
            layout={},
            entries=[*owned(self.built.parameters, self.optimizer), *self.generators(rng_state())],
            state={},
            group=group,
            owner_check=lambda: None,
            keep=100,
        )

    def load(self, run, group, *, generators=False):
        found = newest_verified(run.checkpoints)
        load_checkpoint(found.folder, found.manifest, wanted(self.built.parameters, self.optimizer, None, found.manifest))
        self.optimizer.updates = found.step
        self.built.publish()
        if generators:
            states = rng_state()
            load_checkpoint(found.folder, found.manifest, self.generators(states))
            set_rng_state(states)


def start():
    torch.set_num_threads(1)
    gloo_group()
    return TorchGroup(timedelta(seconds=60).total_seconds())


def copies_equal(trainer):
    """Whether all ranks that hold the same part of a tensor hold the same bits (18: norms must not drift apart)."""
    mine = {(p.name, p.box.offset): (x.tensor[tuple(slice(a, b) for a, b in p.region)]) for x in trainer.built.parameters for p in x.parts}
    everybody = [None] * dist.get_world_size(trainer.world)
    dist.all_gather_object(everybody, mine, group=trainer.world)
    seen = {}
    return all(torch.equal(seen.setdefault(key, value), value) for rank in everybody for key, value in rank.items())


def train_layouts(model, layouts, steps, clip):
    """{layout: [(loss, norm)]} and whether copies stayed equal, for layouts that start anew."""
    answers = {}
    for name, layout in layouts.items():
        trainer = Trainer(model, layout, clip)
        answers[name] = trainer.train(1, steps), trainer.mesh is not None and copies_equal(trainer)
    return answers


def train_chain(trainers, each, folder, group, *, generators=False):
    """Losses of a run that starts anew every `each` steps, through a checkpoint, maybe under another layout."""
    run = RunDir(Path(folder))
    run.checkpoints.mkdir(parents=True, exist_ok=True)
    results = []
    for index, make in enumerate(trainers):
        trainer = make()
        if index:
            trainer.load(run, group, generators=generators)
        results += trainer.train(index * each + 1, (index + 1) * each)
        trainer.save(run, (index + 1) * each, group)
    return results


def agreements(trainer):
    """What this rank hears at step 1 (only rank 2 was asked to stop), step 2 (rank 0 lost the run), step 3 (rank 3 holds a NaN)."""
    rank, heard = dist.get_rank(), []
    for number in (1, 2, 3):
        trainer.flag.given = {"requeue"} if (rank, number) == (2, 1) else set()
        trainer.flag.disowned = (rank, number) == (0, 2)
        before = [m.clone() for kept in trainer.optimizer.states().values() for m in kept]
        if (rank, number) == (3, 3):
            poison(trainer)
        result = trainer.one(number)
        if result.fault is None:
            heard.append((result.heard.stop, result.heard.disowned))
        else:
            after = [m for kept in trainer.optimizer.states().values() for m in kept]
            kept = all(torch.equal(a, m) for a, m in zip(before, after, strict=True))
            heard.append((result.fault.text.split(":")[0], kept))
    return heard


def poison(trainer, value=torch.nan):
    """One element of one matrix of this rank; returns what puts it back."""
    matrix = next(p for p in trainer.built.parameters if p.tensor.ndim > 1 and p.tensor.numel())
    held = matrix.tensor[0, 0].clone()
    matrix.tensor[0, 0] = value
    trainer.built.publish()
    return matrix, held


class Poisoned:
    """A built model whose gradient is infinite on one rank in one step."""

    def __init__(self, built, here, number):
        self.built, self.here, self.left = built, here, number

    def __getattr__(self, name):
        return getattr(self.built, name)

    def forward_backward(self, batch, scale):
        loss = self.built.forward_backward(batch, scale)
        self.left -= 1
        if self.here and self.left == 0:
            next(p for p in self.built.parameters if p.tensor.numel()).grad.view(-1)[0] = torch.inf
        return loss


def overflows(model, layouts):
    """{layout: what each step gave}, in fp16; in step 2 the last rank of the layout alone has an infinite gradient."""
    answers = {}
    for name, layout in layouts.items():
        scale = LossScale(initial=1024.0, growth_steps=2)
        trainer = Trainer(model, layout, 1.0, {"dtype": "fp16", "loss_scale": scale.model_dump()})
        if trainer.mesh is None:
            answers[name] = None
            continue
        trainer.step._built = Poisoned(trainer.built, dist.get_rank() == trainer.plan.world - 1, 2)
        results = [trainer.one(number) for number in range(1, 6)]
        answers[name] = [(r.skipped, r.scale, r.loss) for r in results], trainer.optimizer.updates, copies_equal(trainer)
    return answers


def everything(spec):
    """`spec`: model, clip, steps and layouts that start anew; chain, each; repeats; folder."""
    group = start()

    def trainer(layout, model=spec["model"], training=None):
        return lambda: Trainer(model, layout, spec["clip"], training)

    answers = train_layouts(spec["model"], spec["layouts"], spec["steps"], spec["clip"])
    chained = train_chain([trainer(layout) for layout in spec["chain"]], spec["each"], f"{spec['folder']}/chain", group)
    resumed = {}
    for name, (layout, model, training) in spec["repeats"].items():
        make = trainer(layout, model or spec["model"], training)
        straight = make().train(1, 4)
        resumed[name] = straight, train_chain([make] * 2, 2, f"{spec['folder']}/{name}", group, generators=True)
    return answers, chained, resumed, agreements(trainer(spec["chain"][2])()), overflows(spec["model"], spec["overflows"])
