"""Whole runs, one after another, by one world of ranks: the session and loop of each are the product's, only their start is not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from slurmtrain.atomic import SystemDisk
from slurmtrain.boxes import Part, whole
from slurmtrain.checkpoint.dtypes import carrier
from slurmtrain.checkpoint.load import PartReader
from slurmtrain.clock import SystemClock
from slurmtrain.config.checks import check_job
from slurmtrain.config.job import JobConfig
from slurmtrain.config.stored import read_plan, write_models
from slurmtrain.fabric.plan import build_plan
from slurmtrain.rundir import RunDir
from slurmtrain.runtime.world import Standing
from slurmtrain.store.aside import set_aside
from slurmtrain.store.listing import steps_present
from slurmtrain.store.origin import Origin
from slurmtrain.store.verify import read_manifest
from slurmtrain.telemetry.sink import EventSink
from slurmtrain.train.loop import Loop
from slurmtrain.train.session import open_session
from slurmtrain.train.stopping import StopFlag
from tests.mpi_world import gloo_group
from tests.parallel.layouts import world_of
from tests.train.runs import make_job, make_site


@dataclass(frozen=True)
class Attempt:
    """Attempt `number` of the run in a folder. `stop_at`: the last rank is asked to stop while this step is under way.

    `job`: what the run's job is from now on; `back_to`: checkpoints of later steps are set aside before; `origin`: it is a branch.
    """

    folder: Path
    number: int = 1
    stop_at: int | None = None
    job: JobConfig | None = None
    back_to: int | None = None
    origin: Origin | None = None


def several(attempts: list[Attempt]):
    """How each ended."""
    torch.set_num_threads(1)
    gloo_group()
    endings = []
    for attempt in attempts:
        endings.append(_one(attempt))
        torch.use_deterministic_algorithms(mode=False)
        dist.barrier()
    return endings


def _one(attempt: Attempt):
    run, clock, flag, rank = RunDir(attempt.folder), SystemClock(), StopFlag(), dist.get_rank()
    if rank == 0:
        _arrange(run, attempt)
    dist.barrier()
    run.attempt(attempt.number).create()
    torch.manual_seed(1000 * attempt.number + rank)  # what the attempt before drew must not help this one
    world = _numbered(run, attempt.number)
    session = open_session(run, world, flag, clock)
    if attempt.stop_at is not None and rank == world.size - 1:
        _stop_at(session, attempt.stop_at, flag)
    sink = EventSink(run.event_file(0), clock, attempt.number, rank) if rank == 0 else None
    return Loop(session, Standing(rank, "n1"), sink, clock).run()


def _arrange(run: RunDir, attempt: Attempt):
    if attempt.job is not None:
        write_models(run, attempt.job, make_site(), build_plan(attempt.job, make_site()), SystemDisk())
    if attempt.origin is not None:
        run.origin_json.write_bytes(attempt.origin.to_json())
    for step in steps_present(run.checkpoints):
        if attempt.back_to is not None and step > attempt.back_to:
            set_aside(run, step, "back")


def _numbered(run: RunDir, attempt: int):
    return replace(world_of(read_plan(run.plan_json)), attempt=attempt, timeout=timedelta(seconds=60))


def _stop_at(session, step: int, flag: StopFlag):
    inner = session.built.runner.train

    def train(batch, scale):
        if session.progress.step + 1 == step:
            flag.given.add("requeue")
        return inner(batch, scale)

    session.built.runner.train = train


def job_of(data: Path, *, sections=None, gpus: int = 1, **more) -> JobConfig:
    """`make_job` with more sections of the job file, checked as a whole."""
    plain = make_job(data, gpus=gpus, **more).model_dump()
    for name, values in (sections or {}).items():
        plain[name] = {**(plain[name] or {}), **values} if isinstance(values, dict) else values
    job = JobConfig.model_validate(plain)
    check_job(job, make_site())
    return job


def tensors_of(run: RunDir, step: int) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, whole, whatever layout wrote them."""
    return tensors_in(run.checkpoint(step))


def tensors_in(folder: Path) -> dict[str, torch.Tensor]:
    found = {}
    manifest = read_manifest(folder)
    with PartReader(folder, manifest) as reader:
        for name, entry in manifest.tensors.items():
            array = np.empty(entry.shape, carrier(entry.dtype))
            reader.fill(Part(name, entry.shape, whole(entry.shape), tuple((0, n) for n in entry.shape)), entry.dtype, array)
            found[name] = torch.from_numpy(array)
    return found
