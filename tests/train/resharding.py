"""What the ranks of the resume tests do: train, save, begin anew under the same or another layout, and tell digests of every tensor."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from slurmtrain.checkpoint.saver import Header, Terms
from slurmtrain.checkpoint.staged import AsyncSaver
from slurmtrain.checkpoint.state import TensorSource, load_checkpoint
from slurmtrain.checkpoint.sync import SyncSaver
from slurmtrain.config.model import ModelConfig
from slurmtrain.rundir import RunDir
from slurmtrain.runtime.seeds import rng_state, set_rng_state
from slurmtrain.store.listing import newest_verified
from slurmtrain.store.retention import RetentionPolicy
from slurmtrain.train.group import TorchGroup
from slurmtrain.train.state import owned, tensors, wanted
from tests.parallel.layouts import MODEL, changed
from tests.train.worlds import Trainer, start

DROPPING = changed(MODEL, dropout=0.1, attention_dropout=0.1)
DROPPING_RING = changed(MODEL, dropout=0.1)
"""The ring draws no dropout in attention."""


@dataclass(frozen=True)
class Case:
    """`layout`: of `plan_of`; `mode`: how it is saved; `writers`: ranks that share a file; `training`: more keys of TrainingConfig."""

    name: str
    mode: str = "sync"
    model: ModelConfig = DROPPING
    training: dict[str, Any] = field(default_factory=dict)
    layout: dict[str, Any] = field(default_factory=dict)


def of(name: str, mode: str, dtype: str = "fp32", *, model: ModelConfig = DROPPING, recompute: str = "none", **layout: Any) -> Case:
    return Case(f"{name}, {dtype}, {mode}", mode, model, {"dtype": dtype, "recompute": recompute}, layout)


def group_of(trainer: Trainer) -> TorchGroup:
    return TorchGroup(60.0, list(range(trainer.plan.world)))


def digests(trainer: Trainer) -> dict[str, str]:
    """sha256 of the bytes of every part of weights and moments on this rank."""
    found = {}
    for _, part, tensor in tensors(trainer.built.parameters, trainer.optimizer):
        region = tensor.detach()[tuple(slice(a, b) for a, b in part.region)] if part.region else tensor.detach()
        found[f"{part.name}@{part.box.offset}"] = hashlib.sha256(region.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
    assert any(name.startswith("optimizer/") for name in found)
    return found


def whole_tensors(trainer: Trainer) -> dict[str, torch.Tensor]:
    """The global tensors, put together from all ranks' memory without any checkpoint; bits that two ranks hold must agree."""
    here = [(part.name, part.global_shape, part.box, tensor) for (part, tensor) in _held(trainer)]
    everybody: list[Any] = [None] * dist.get_world_size(trainer.world)
    dist.all_gather_object(everybody, here, group=trainer.world)
    whole: dict[str, torch.Tensor] = {}
    for name, shape, box, tensor in (one for rank in everybody for one in rank):
        target = whole.setdefault(name, torch.full(shape, torch.nan))
        place = tuple(slice(a, b) for a, b in zip(box.offset, box.stop, strict=True))
        assert bool((target[place].isnan() | (target[place] == tensor)).all()), name
        target[place] = tensor
    assert not any(bool(one.isnan().any()) for one in whole.values())
    return whole


def _held(trainer: Trainer) -> list[tuple[Any, torch.Tensor]]:
    return [
        (part, tensor.detach()[tuple(slice(a, b) for a, b in part.region)].clone() if part.region else tensor.detach().clone())
        for _, part, tensor in tensors(trainer.built.parameters, trainer.optimizer)
    ]


def save(trainer: Trainer, run: RunDir, step: int, mode: str, meanwhile: Any = None) -> None:
    """Save as the trainer does; `meanwhile`: what is done before an asynchronous save has ended."""
    group = group_of(trainer)
    terms = Terms(run, RetentionPolicy(100))
    saver = SyncSaver(terms, group) if mode == "sync" else AsyncSaver(terms, group)
    more = trainer.scaler.state() if trainer.scaler is not None else {}
    state = {"updates": trainer.optimizer.updates, **more}
    source = TensorSource([*owned(trainer.built.parameters, trainer.optimizer), *trainer.generators(rng_state())])
    outcome = saver.begin(Header(step, 1, 0, 0.0, {}, state), source)
    if outcome is None:
        if meanwhile is not None:
            meanwhile()
        (outcome,) = saver.wait()
    saver.close()
    assert outcome.ok, outcome.error


def load(trainer: Trainer, run: RunDir, *, generators: bool) -> None:
    found = newest_verified(run.checkpoints)
    assert found is not None
    load_checkpoint(found.folder, found.manifest, wanted(trainer.built.parameters, trainer.optimizer, None, found.manifest))
    trainer.optimizer.updates = found.manifest.state["updates"]
    if trainer.scaler is not None:
        trainer.scaler.restore(found.manifest.state)
    trainer.built.publish()
    if generators:
        states = rng_state()
        load_checkpoint(found.folder, found.manifest, trainer.generators(states))
        set_rng_state(states)


def repeats(cases: list[Case], half: int, folder: str) -> dict[str, Any]:
    """For each case: (digests after 2 x half steps at a stretch, and with a save and a new beginning in the middle); None outside."""
    start()
    answers: dict[str, Any] = {}
    for number, case in enumerate(cases):

        def made(case: Case = case) -> Trainer:
            return Trainer(case.model, case.layout, 1.0, case.training)

        straight, first, second = made(), None, None
        if straight.mesh is not None:
            straight.train(1, 2 * half)
        first = made()
        run = RunDir(Path(folder) / f"{number:03d}")
        run.checkpoints.mkdir(parents=True, exist_ok=True)
        if first.mesh is not None:
            first.train(1, half)
            save(first, run, half, case.mode, meanwhile=lambda first=first: first.train(half + 1, half + 1))
        second = made()
        if second.mesh is None:
            answers[case.name] = None
            continue
        load(second, run, generators=True)
        second.train(half + 1, 2 * half)
        answers[case.name] = digests(straight), digests(second)
    return answers


def reshards(layouts: dict[str, dict[str, Any]], model: ModelConfig, folder: str) -> dict[tuple[str, str], Any]:
    """For each pair of layouts: names of parts whose bits are not the source's, number of parts, next loss of source and target."""
    start()
    sources, wholes, losses = {}, {}, {}
    for number, (name, layout) in enumerate(layouts.items()):
        trainer = Trainer(model, layout, 1.0)
        run = sources[name] = RunDir(Path(folder) / f"{number:03d}")
        run.checkpoints.mkdir(parents=True, exist_ok=True)
        if trainer.mesh is not None:
            trainer.train(1, 2)
            save(trainer, run, 2, "sync" if number % 2 else "async")
            wholes[name] = whole_tensors(trainer)
            losses[name] = trainer.one(3).loss
        box = [wholes.get(name), losses.get(name)]
        dist.broadcast_object_list(box, src=0)
        wholes[name], losses[name] = box
    answers = {}
    for target, layout in layouts.items():
        for source in layouts:
            if source == target:
                continue
            trainer = Trainer(model, layout, 1.0)
            if trainer.mesh is None:
                continue
            load(trainer, sources[source], generators=False)
            held = _held(trainer)
            wrong = [part.name for part, tensor in held if not _same(tensor, wholes[source][part.name], part)]
            answers[source, target] = wrong, len(held), losses[source], trainer.one(3).loss
    return answers


def _same(tensor: torch.Tensor, whole: torch.Tensor, part: Any) -> bool:
    place = tuple(slice(a, b) for a, b in zip(part.box.offset, part.box.stop, strict=True))
    return torch.equal(tensor.view(torch.int32), whole[place].view(torch.int32))
