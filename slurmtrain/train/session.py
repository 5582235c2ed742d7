"""Puts a rank's trainer together: configuration, data, mesh, model, optimiser, and what a checkpoint gives back."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from slurmtrain.checkpoint.state import find_checkpoint, load_checkpoint
from slurmtrain.clock import Clock
from slurmtrain.config.job import JobConfig
from slurmtrain.config.plan import Plan
from slurmtrain.config.stored import read_job
from slurmtrain.data.index import TOKENS_NAME, check_fits
from slurmtrain.data.loader import Batches
from slurmtrain.data.tokens import TokenFolder
from slurmtrain.parallel.apply import Built, build
from slurmtrain.rundir import RunDir
from slurmtrain.runtime.mesh import Mesh, build_mesh
from slurmtrain.runtime.seeds import rng_state, seed_everything, seed_for, set_rng_state
from slurmtrain.runtime.world import World
from slurmtrain.train.group import TorchGroup
from slurmtrain.train.optimizer import AdamW, lr_at
from slurmtrain.train.state import Progress, Source, from_manifest, place_name, rng_entries, stored_here, wanted
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
    """Everything a rank trains with; `resumed` is None when there was no checkpoint."""

    run: RunDir
    job: JobConfig
    plan: Plan
    world: World
    mesh: Mesh
    built: Built
    optimizer: AdamW
    step: Step
    batches: Batches
    progress: Progress
    source: Source
    group: TorchGroup
    resumed: Resumed | None

    @property
    def place(self) -> str:
        """The place of this rank in the mesh, as a word."""
        return place_name(self.mesh.coordinates())


def open_tokens(job: JobConfig) -> TokenFolder:
    """The job's tokens. Raises DataError, and ConfigError when they do not fit the job."""
    tokens = TokenFolder.open(job.data.path)
    check_fits(tokens.index, job)
    return tokens


def open_session(run: RunDir, world: World, flag: StopFlag, clock: Clock) -> Session:
    """Collective. Raises ConfigError, DataError, CheckpointError."""
    job = read_job(run.job_json)
    plan, training = world.plan, job.training
    tokens = open_tokens(job)
    if training.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(mode=True)
    mesh = build_mesh(plan, world)
    built = build(
        job.model,
        plan,
        mesh,
        sequence_length=training.sequence_length,
        seed=seed_for(training.seed, purpose="model"),
        device=world.device,
    )
    optimizer = AdamW(built.parameters, job.optimizer)
    session = Session(
        run=run,
        job=job,
        plan=plan,
        world=world,
        mesh=mesh,
        built=built,
        optimizer=optimizer,
        step=_step(job, built, optimizer, flag),
        batches=_batches(tokens, job, mesh),
        progress=Progress(),
        source=Source(training.seed, training.sequence_length, tokens.index.files[TOKENS_NAME].xxh3_64),
        group=TorchGroup(world.timeout.total_seconds()),
        resumed=None,
    )
    return replace(session, resumed=_resume(session, clock))


def _step(job: JobConfig, built: Built, optimizer: AdamW, flag: StopFlag) -> Step:
    def lr(number: int) -> float:
        return lr_at(number, job.optimizer, job.training.steps)

    return Step(built, optimizer, lr_at=lr, clip_norm=job.training.clip_norm, flag=flag, world=dist.group.WORLD)


def _batches(tokens: TokenFolder, job: JobConfig, mesh: Mesh) -> Batches:
    training = job.training
    return Batches(
        tokens,
        sequence_length=training.sequence_length,
        global_batch=training.global_batch,
        micro_batch=training.micro_batch,
        dp_rank=mesh.index("data"),
        dp_size=mesh.size("data"),
        seed=seed_for(training.seed, purpose="data"),
    )


def _resume(session: Session, clock: Clock) -> Resumed | None:
    """Fill the session from the newest checkpoint that verifies, whatever layout wrote it."""
    start = clock.monotonic()
    found = find_checkpoint(session.run, session.group)
    if found is None:
        _seed(session)
        return None
    manifest, progress = found.manifest, session.progress
    saved, session.optimizer.updates = from_manifest(manifest, session.source)
    progress.step, progress.tokens, progress.position = saved.step, saved.tokens, saved.position
    session.batches.position = saved.position
    load_checkpoint(found.folder, manifest, wanted(session.built.parameters, session.optimizer))
    states = rng_state()
    generators = rng_entries(session.place, states)
    if stored_here(generators, manifest):
        load_checkpoint(found.folder, manifest, generators)
        set_rng_state(states)
    else:
        _seed(session)
    return Resumed(found.step, clock.monotonic() - start, found.passed_over)


def _seed(session: Session) -> None:
    """Seed this rank's generators; a rank that has no state to go on with must not repeat the numbers of step 0."""
    seed = session.source.seed + session.progress.step
    seed_everything(seed_for(seed, **session.mesh.coordinates(), purpose="replicated"))
