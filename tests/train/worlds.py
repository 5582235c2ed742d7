"""What the ranks of the trainer's multi-layout test do: many layouts one after another in one world of four."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from slurmtrain.atomic import SystemDisk
from slurmtrain.checkpoint.state import find_checkpoint, load_checkpoint, save_checkpoint
from slurmtrain.config.training import OptimizerConfig
from slurmtrain.errors import NonFiniteError
from slurmtrain.parallel.apply import build
from slurmtrain.rundir import RunDir
from slurmtrain.train.group import TorchGroup
from slurmtrain.train.optimizer import AdamW
from slurmtrain.train.state import owned, wanted
from slurmtrain.train.step import Step
from slurmtrain.train.stopping import StopFlag
from tests.mpi_world import gloo_group
from tests.parallel.layouts import SEQUENCE, TorchMesh, batch_of, plan_of

LR = 1e-3
"""At 1e-2 one process with its batch in another order is already off by 5e-3 after 20 steps: Adam makes whole steps of rounding noise."""


class Trainer:
    """One layout, ready to train on the batches of `batch_of`."""

    def __init__(self, model, layout, clip):
        self.mesh = TorchMesh(**{k: v for k, v in layout.items() if k in ("tp", "dp", "pp")})
        self.model = model
        if not self.mesh.inside:
            return
        self.plan = plan_of(model, **layout)
        self.built = build(model, self.plan, self.mesh, sequence_length=SEQUENCE, seed=17, device=torch.device("cpu"))
        self.optimizer = AdamW(self.built.parameters, OptimizerConfig(lr=LR))
        self.flag = StopFlag()
        self.step = Step(self.built, self.optimizer, lr_at=lambda _: LR, clip_norm=clip, flag=self.flag, world=self.mesh.world)

    def train(self, first, last):
        """(loss, norm) of steps first..last; None on ranks outside the layout."""
        if not self.mesh.inside:
            return None
        results = []
        for number in range(first, last + 1):
            tokens, labels = (x.chunk(self.plan.dp)[self.mesh.index("dp")] for x in batch_of(number, self.model))
            result = self.step(number, tokens, labels)
            assert result.tokens == 8 * SEQUENCE
            results.append((result.loss, result.grad_norm))
        return results

    def save(self, run, step, group):
        save_checkpoint(
            run,
            step=step,
            attempt=1,
            tokens=0,
            layout={},
            entries=owned(self.built.parameters, self.optimizer),
            state={},
            group=group,
            disk=SystemDisk(),
            owner_check=lambda: None,
            keep=100,
        )

    def load(self, run, group):
        found = find_checkpoint(run, group)
        load_checkpoint(found.folder, found.manifest, wanted(self.built.parameters, self.optimizer))
        self.optimizer.updates = found.step


def start():
    torch.set_num_threads(1)
    gloo_group()
    return TorchGroup(timedelta(seconds=60).total_seconds())


def copies_equal(trainer):
    """Whether all ranks that hold the same part of a tensor hold the same bits (18: norms must not drift apart)."""
    mine = {(p.name, p.box.offset): (x.tensor[tuple(slice(a, b) for a, b in p.region)]) for x in trainer.built.parameters for p in x.parts}
    everybody = [None] * dist.get_world_size(trainer.mesh.world)
    dist.all_gather_object(everybody, mine, group=trainer.mesh.world)
    seen = {}
    return all(torch.equal(seen.setdefault(key, value), value) for rank in everybody for key, value in rank.items())


def train_layouts(model, layouts, steps, clip):
    """{layout: [(loss, norm)]} and whether copies stayed equal, for layouts that start anew."""
    answers = {}
    for name, layout in layouts.items():
        trainer = Trainer(model, layout, clip)
        answers[name] = trainer.train(1, steps), trainer.mesh.inside and copies_equal(trainer)
    return answers


def train_chain(trainers, each, folder, group):
    """Losses of a run that changes its layout every `each` steps, through a checkpoint."""
    run = RunDir(Path(folder))
    run.checkpoints.mkdir(parents=True, exist_ok=True)
    results = []
    for index, make in enumerate(trainers):
        trainer = make()
        if index:
            trainer.load(run, group)
        results += trainer.train(index * each + 1, (index + 1) * each)
        trainer.save(run, (index + 1) * each, group)
    return results


def agreements(trainer):
    """What this rank hears at step 1 (only rank 2 was asked to stop), step 2 (rank 0 lost the run), step 3 (rank 3 holds a NaN)."""
    rank, heard = dist.get_rank(), []
    for number in (1, 2, 3):
        trainer.flag.given = {"requeue"} if (rank, number) == (2, 1) else set()
        trainer.flag.disowned = (rank, number) == (0, 2)
        before = [m.clone() for m, _ in trainer.optimizer.moments]
        if (rank, number) == (3, 3):
            trainer.built.parameters[2].tensor[0, 0] = torch.nan
        tokens, labels = (x.chunk(trainer.plan.dp)[trainer.mesh.index("dp")] for x in batch_of(number, trainer.model))
        try:
            result = trainer.step(number, tokens, labels)
            heard.append((result.stop, result.disowned))
        except NonFiniteError as error:
            kept = all(torch.equal(a, m) for a, (m, _) in zip(before, trainer.optimizer.moments, strict=True))
            heard.append((str(error).split(":")[0], kept))
    return heard


def everything(spec):
    """`spec`: model, clip, steps and layouts that start anew; chain, each; repeats; folder."""
    group = start()

    def trainer(layout):
        return lambda: Trainer(spec["model"], layout, spec["clip"])

    answers = train_layouts(spec["model"], spec["layouts"], spec["steps"], spec["clip"])
    chained = train_chain([trainer(layout) for layout in spec["chain"]], spec["each"], f"{spec['folder']}/chain", group)
    resumed = {}
    for name, layout in spec["repeats"].items():
        straight = trainer(layout)().train(1, 4)
        resumed[name] = straight, train_chain([trainer(layout)] * 2, 2, f"{spec['folder']}/{name}", group)
    return answers, chained, resumed, agreements(trainer(spec["chain"][2])())
