"""Puts a rank's trainer together: configuration, data, mesh, model, optimiser, and what a checkpoint gives back."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from slurmtrain.checkpoint.forkserver import ForkServer
from slurmtrain.checkpoint.group import Group, on_rank_0
from slurmtrain.checkpoint.restore import restore
from slurmtrain.checkpoint.saver import Saver
from slurmtrain.checkpoint.state import load_checkpoint
from slurmtrain.clock import Clock
from slurmtrain.config.changes import UNSEEN, Change, differences, stored
from slurmtrain.config.check_checkpoint import notes_of
from slurmtrain.config.job import CheckpointConfig, JobConfig
from slurmtrain.config.plan import Plan
from slurmtrain.config.stored import read_job, read_site
from slurmtrain.data.counting import Source
from slurmtrain.data.loader import Batches
from slurmtrain.errors import CheckpointError
from slurmtrain.parallel.apply import Built, build
from slurmtrain.parallel.axis import Meter
from slurmtrain.rundir import RunDir
from slurmtrain.runtime.mesh import Mesh, build_mesh
from slurmtrain.runtime.seeds import rng_state, seed_everything, seed_for, set_rng_state
from slurmtrain.runtime.world import World
from slurmtrain.store.aside import set_aside
from slurmtrain.store.listing import Found
from slurmtrain.store.manifest import Manifest
from slurmtrain.store.origin import Origin, read_origin
from slurmtrain.telemetry.heartbeat import Heart, SilentHeart
from slurmtrain.telemetry.interventions import read_book
from slurmtrain.telemetry.rates import Yardstick, yardstick
from slurmtrain.train.ema import Average
from slurmtrain.train.evaluate import Evaluator
from slurmtrain.train.examine import put_aside_unsure
from slurmtrain.train.feed import Feed, open_feed
from slurmtrain.train.group import TorchGroup
from slurmtrain.train.local import Local, open_nodes
from slurmtrain.train.marks import Marks
from slurmtrain.train.numerics import Numerics
from slurmtrain.train.observe import Observer
from slurmtrain.train.optimizer import Optimizer, make_optimizer
from slurmtrain.train.phases import Phases
from slurmtrain.train.provenance import made_by
from slurmtrain.train.savers import make_saver
from slurmtrain.train.scaler import LossScaler
from slurmtrain.train.schedule import lr_at
from slurmtrain.train.state import Entry, Progress, from_manifest, has_average, place_name, rng_entries, stored_here, wanted
from slurmtrain.train.step import Step
from slurmtrain.train.stopping import StopFlag
from slurmtrain.train.warm import warm_start


@dataclass(frozen=True)
class Resumed:
    """What a checkpoint gave back. `passed_over`: newer ones that do not verify, with the reason; `origin`: the checkpoint is another
    run's, of which this is a branch; `changes`: what the job says otherwise than the one that made it; `tier`: where it lay.
    """

    step: int
    seconds: float
    passed_over: tuple[tuple[int, str], ...]
    origin: Origin | None = None
    changes: tuple[Change, ...] = ()
    tier: Literal["shared", "local"] = "shared"


@dataclass(frozen=True)
class Session:
    """Everything a rank trains with.

    `resumed` is None when there was no checkpoint; `scaler` in all types but fp16, `average` and `evaluator` where the job asks for
    none; `notes`: what people should know about the start; `made_by`: what a checkpoint says of its job, versions and code; `asides`:
    checkpoints that were set aside, with the reason.
    """

    run: RunDir
    job: JobConfig
    plan: Plan
    world: World
    mesh: Mesh
    built: Built
    optimizer: Optimizer
    step: Step
    batches: Batches
    evaluator: Evaluator | None
    progress: Progress
    marks: Marks
    source: Source
    group: Group
    saver: Saver
    flag: StopFlag
    made_by: Mapping[str, Any]
    scaler: LossScaler | None
    average: Average | None
    numerics: Numerics
    phases: Phases
    observer: Observer
    yard: Yardstick
    notes: tuple[str, ...]
    resumed: Resumed | None
    asides: tuple[tuple[int, str], ...] = ()
    local: Local | None = None
    """The nodes' own disks, where they take part."""

    @property
    def saving(self) -> CheckpointConfig:
        """What the job says of saving. Where it wants the nodes' own disks and they cannot be used: what goes to the run folder anyway."""
        wish = self.job.checkpoint
        if not wish.local or (self.local is not None and self.local.saves is not None):
            return wish
        return wish.model_copy(update={"local": False, "every_steps": wish.every_steps * wish.flush_every})

    @property
    def place(self) -> str:
        """The place of this rank in the mesh, as a word."""
        return place_name(self.mesh.coordinates())


def open_session(
    run: RunDir, world: World, flag: StopFlag, clock: Clock, forkserver: ForkServer | None = None, *, heart: Heart | None = None
) -> Session:
    """Collective. `forkserver`: started before MPI and torch, where the job saves asynchronously. `heart`: beats from here on.

    Raises ConfigError, DataError, CheckpointError.
    """
    heart = heart or SilentHeart()
    heart.beat("load")
    job, site = read_job(run.job_json), read_site(run.site_json)
    plan, training = world.plan, job.training
    if training.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(mode=True)
    mesh = build_mesh(plan, world)
    feed = open_feed(job, mesh, world, site.paths.scratch)
    meter, phases = Meter(world.device, heart=heart), Phases(world.device, heart)
    seed = seed_for(training.seed, purpose="model")
    built = build(job.model, plan, mesh, training, seed=seed, device=world.device, meter=meter)
    optimizer = make_optimizer(built.parameters, job.optimizer)
    scaler = LossScaler(training.loss_scale) if training.dtype == "fp16" else None
    group = TorchGroup(world.timeout.total_seconds())
    average = Average(built.parameters, training.ema_decay) if training.ema_decay is not None else None
    numerics = Numerics(job.recovery.numerics, on_rank_0(group, lambda: read_book(run.numerics_json)))
    nodes = open_nodes(run, job, site, world, group=group, make_group=TorchGroup)
    saves_there = nodes.local.saves if nodes.local is not None else None
    session = Session(
        run=run,
        job=job,
        plan=plan,
        world=world,
        mesh=mesh,
        built=built,
        optimizer=optimizer,
        step=Step(
            built,
            optimizer,
            lr_at=partial(lr_at, config=job.optimizer, steps=training.steps),
            clip_norm=training.clip_norm,
            norm_power=float(training.clip_norm_type),
            flag=flag,
            world=dist.group.WORLD,
            data_size=plan.dp,
            scaler=scaler,
            average=average,
            numerics=numerics,
            phase=phases.at,
        ),
        batches=feed.batches,
        evaluator=_evaluator(feed, built, flag, world, clock=clock, heart=heart),
        progress=Progress(),
        marks=Marks(job.target),
        source=Source(training.seed, training.sequence_length, feed.batches.fingerprint),
        group=group,
        saver=make_saver(run, job, site, world, group, clock=clock, forkserver=forkserver, local=saves_there),
        flag=flag,
        made_by=made_by(run, job, group),
        scaler=scaler,
        average=average,
        numerics=numerics,
        phases=phases,
        observer=Observer(built.runner, phases, meter, world.device),
        yard=yardstick(job, site),
        notes=(*feed.batches.notes, *notes_of(job, len(world.nodes)), *nodes.notes),
        resumed=None,
        local=nodes.local,
    )
    return _begun(session, clock)


def _evaluator(feed: Feed, built: Built, flag: StopFlag, world: World, *, clock: Clock, heart: Heart) -> Evaluator | None:
    if not feed.sets:
        return None
    return Evaluator(built, feed.sets, flag=flag, world=dist.group.WORLD, device=world.device, clock=clock, heart=heart)


def _begun(session: Session, clock: Clock) -> Session:
    """From the newest checkpoint that can be loaded, whatever layout wrote it; a branch that has none from its origin's; else from the
    job's weights, else from the first values.
    """
    start, origin = clock.monotonic(), read_origin(session.run)
    policy, generators = session.job.checkpoint.verify, rng_state()
    asides = put_aside_unsure(session.run, session.group, compares=session.job.recovery.corruption.every_steps > 0)

    def set_it_aside(step: int, why: str) -> None:
        set_aside(session.run, step, why)
        asides.append((step, why))

    rival = None
    if session.local is not None:
        rival = session.local.rival(session.group, lambda manifest: [part for part, _ in _entries(session, generators, manifest)])
    load = partial(_load, session, generators)
    found = restore(session.run.checkpoints, session.group, load, policy=policy, set_aside=set_it_aside, rival=rival)
    if found is None and origin is not None:
        found = _of_origin(session, origin, load)
    else:
        origin = None
    session = replace(session, asides=tuple(asides))
    if found is None:
        note = _first_weights(session)
        _seed(session)
        lost = [f"step {step} is not gone on from: {why}" for step, why in (rival.passed_over if rival is not None else ())]
        return replace(session, notes=(*session.notes, *lost, *note))
    _go_on(session, found.manifest, generators)
    changes = _changes(found.manifest, session.job)
    resumed = Resumed(found.step, clock.monotonic() - start, found.passed_over, origin, changes, found.tier)
    return replace(session, resumed=resumed)


def load_older(session: Session, at_most: int) -> Found | None:
    """Go on from the newest checkpoint of a step up to `at_most`, or from what a branch began with, as a start would; None where there is
    none. Collective; nothing is under way. Raises what `restore` raises.
    """
    policy, generators, origin = session.job.checkpoint.verify, rng_state(), read_origin(session.run)
    load = partial(_load, session, generators)
    found = restore(session.run.checkpoints, session.group, load, policy=policy, at_most=at_most)
    if found is None and origin is not None and origin.step <= at_most:
        found = _of_origin(session, origin, load)
    if found is not None:
        _go_on(session, found.manifest, generators)
    return found


def _of_origin(session: Session, origin: Origin, load: Callable[[Found], None]) -> Found:
    """The checkpoint of another run that this one began with."""
    found = restore(RunDir(origin.run).checkpoints, session.group, load, policy=session.job.checkpoint.verify, step=origin.step)
    if found is None:
        raise CheckpointError(f"{session.run.origin_json}: this run begins with {origin}, and that checkpoint is no longer there")
    return found


def _load(session: Session, generators: Mapping[str, Tensor], found: Found) -> None:
    """Fill this rank's tensors, which may hold parts of another checkpoint already; no collective. `generators`: filled, too, where the
    checkpoint has them.
    """
    from_manifest(found.manifest, session.source)
    entries = _entries(session, generators, found.manifest)
    load_checkpoint(found.folder, found.manifest, entries, session.job.checkpoint.verify, (session.group.rank, session.group.size))


def _entries(session: Session, generators: Mapping[str, Tensor], manifest: Manifest) -> list[Entry]:
    """What this rank wants of a checkpoint."""
    tensors = wanted(session.built.parameters, session.optimizer, session.average, manifest)
    own = rng_entries(session.place, generators)
    return [*tensors, *own] if stored_here(own, manifest) else tensors


def _go_on(session: Session, manifest: Manifest, generators: Mapping[str, Tensor]) -> None:
    """All that a checkpoint gives back besides its tensors. Collective."""
    progress, state = session.progress, manifest.state
    saved, session.optimizer.updates = from_manifest(manifest, session.source)
    progress.step, progress.tokens, progress.position, progress.seconds = saved.step, saved.tokens, saved.position, saved.seconds
    session.marks.restore(state)
    session.numerics.restore(state)
    session.batches.seek(saved.position, saved.step)
    if session.scaler is not None:
        session.scaler.restore(state)
    _follow(session, average=has_average(manifest))
    if stored_here(rng_entries(session.place, generators), manifest):
        set_rng_state(dict(generators))
    else:
        _seed(session)


def _changes(manifest: Manifest, job: JobConfig) -> tuple[Change, ...]:
    """What the job says otherwise than the one that made the checkpoint, of what a curve depends on."""
    told = manifest.state.get("job")
    if not isinstance(told, Mapping):
        return ()
    return tuple(one for one in differences(told, stored(job)) if one.section not in UNSEEN)


def _first_weights(session: Session) -> tuple[str, ...]:
    """Load model.weights where the job has them; what to say of it."""
    weights = session.job.model.weights
    if weights is None:
        return ()
    entries = [(part, p.tensor) for p in session.built.parameters for part in p.parts]
    note = warm_start(weights, session.job, entries, session.group)
    _follow(session, average=False)
    return (note,)


def _follow(session: Session, *, average: bool) -> None:
    """Let the modules follow the values that were loaded, and the moving average too where it was not loaded itself."""
    session.built.publish()
    if session.average is not None and not average:
        session.average.restart()


def _seed(session: Session) -> None:
    """Seed this rank's generators; a rank that has no state to go on with must not repeat the numbers of step 0.

    Of every activation each tensor-parallel rank holds a part of its own (sequence parallelism, its own heads): all masks differ.
    """
    seed = session.source.seed + session.progress.step
    seed_everything(seed_for(seed, **session.mesh.coordinates(), purpose="sharded"))
