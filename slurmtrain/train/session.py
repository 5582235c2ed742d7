"""Puts a rank's trainer together: configuration, data, mesh, model, optimiser, and what a checkpoint gives back."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.distributed as dist

from slurmtrain.checkpoint.hf import load_weights
from slurmtrain.checkpoint.state import find_checkpoint, load_checkpoint
from slurmtrain.clock import Clock
from slurmtrain.config.job import JobConfig
from slurmtrain.config.plan import Plan
from slurmtrain.config.stored import read_job, read_site
from slurmtrain.data.loader import Batches
from slurmtrain.parallel.apply import Built, build
from slurmtrain.parallel.axis import Meter
from slurmtrain.rundir import RunDir
from slurmtrain.runtime.mesh import Mesh, build_mesh
from slurmtrain.runtime.seeds import rng_state, seed_everything, seed_for, set_rng_state
from slurmtrain.runtime.world import World
from slurmtrain.telemetry.rates import Yardstick, yardstick
from slurmtrain.train.ema import Average
from slurmtrain.train.evaluate import Evaluator
from slurmtrain.train.feed import Feed, open_feed
from slurmtrain.train.group import TorchGroup
from slurmtrain.train.marks import Marks
from slurmtrain.train.observe import Observer
from slurmtrain.train.optimizer import Optimizer, make_optimizer
from slurmtrain.train.phases import Phases
from slurmtrain.train.scaler import LossScaler
from slurmtrain.train.schedule import lr_at
from slurmtrain.train.state import Progress, Source, from_manifest, has_average, place_name, rng_entries, stored_here, wanted
from slurmtrain.train.step import Step
from slurmtrain.train.stopping import StopFlag


@dataclass(frozen=True)
class Resumed:
    """What a checkpoint gave back. `passed_over`: newer ones that do not verify, with the reason."""

    step: int
    seconds: float
    passed_over: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Session:
    """Everything a rank trains with.

    `resumed` is None when there was no checkpoint; `scaler` in all types but fp16, `average` and `evaluator` where the job asks for
    none; `notes`: what people should know about the start.
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
    group: TorchGroup
    scaler: LossScaler | None
    average: Average | None
    phases: Phases
    observer: Observer
    yard: Yardstick
    notes: tuple[str, ...]
    resumed: Resumed | None

    @property
    def place(self) -> str:
        """The place of this rank in the mesh, as a word."""
        return place_name(self.mesh.coordinates())


def open_session(run: RunDir, world: World, flag: StopFlag, clock: Clock) -> Session:
    """Collective. Raises ConfigError, DataError, CheckpointError."""
    job, site = read_job(run.job_json), read_site(run.site_json)
    plan, training = world.plan, job.training
    if training.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(mode=True)
    mesh = build_mesh(plan, world)
    feed = open_feed(job, mesh, world, site.paths.scratch)
    meter, phases = Meter(world.device), Phases(world.device)
    seed = seed_for(training.seed, purpose="model")
    built = build(job.model, plan, mesh, training, seed=seed, device=world.device, meter=meter)
    optimizer = make_optimizer(built.parameters, job.optimizer)
    scaler = LossScaler(training.loss_scale) if training.dtype == "fp16" else None
    average = Average(built.parameters, training.ema_decay) if training.ema_decay is not None else None
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
            phase=phases.at,
        ),
        batches=feed.batches,
        evaluator=_evaluator(feed, built, flag, world, clock),
        progress=Progress(),
        marks=Marks(job.target),
        source=Source(training.seed, training.sequence_length, feed.batches.fingerprint),
        group=TorchGroup(world.timeout.total_seconds()),
        scaler=scaler,
        average=average,
        phases=phases,
        observer=Observer(built.runner, phases, meter, world.device),
        yard=yardstick(job, site),
        notes=feed.batches.notes,
        resumed=None,
    )
    return _begun(session, clock)


def _evaluator(feed: Feed, built: Built, flag: StopFlag, world: World, clock: Clock) -> Evaluator | None:
    if not feed.sets:
        return None
    return Evaluator(built, feed.sets, flag=flag, world=dist.group.WORLD, device=world.device, clock=clock)


def _begun(session: Session, clock: Clock) -> Session:
    """From the newest checkpoint that verifies, whatever layout wrote it; else from the job's weights, else from the first values."""
    start = clock.monotonic()
    found = find_checkpoint(session.run, session.group)
    if found is None:
        note = _first_weights(session)
        _seed(session)
        return replace(session, notes=(*session.notes, *note))
    manifest, progress = found.manifest, session.progress
    saved, session.optimizer.updates = from_manifest(manifest, session.source)
    progress.step, progress.tokens, progress.position, progress.seconds = saved.step, saved.tokens, saved.position, saved.seconds
    session.marks.restore(manifest.state)
    session.batches.seek(saved.position, saved.step)
    if session.scaler is not None:
        session.scaler.restore(manifest.state)
    load_checkpoint(found.folder, manifest, wanted(session.built.parameters, session.optimizer, session.average, manifest))
    _follow(session, average=has_average(manifest))
    states = rng_state()
    generators = rng_entries(session.place, states)
    if stored_here(generators, manifest):
        load_checkpoint(found.folder, manifest, generators)
        set_rng_state(states)
    else:
        _seed(session)
    return replace(session, resumed=Resumed(found.step, clock.monotonic() - start, found.passed_over))


def _first_weights(session: Session) -> tuple[str, ...]:
    """Load model.weights where the job has them; what to say of it."""
    folder = session.job.model.weights
    if folder is None:
        return ()
    loaded = load_weights(folder, session.job.model, [(part, p.tensor) for p in session.built.parameters for part in p.parts])
    _follow(session, average=False)
    return (f"weights of {folder}: {loaded.line}",)


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
