"""May a run of this name be begun, or gone on with? The answers of the folder and of Slurm, and what to type instead."""

from __future__ import annotations

import json

from slurmtrain.cli.runs import is_run, jobs_of
from slurmtrain.config.changes import Change, check_changes, differences, plain
from slurmtrain.config.job import JobConfig
from slurmtrain.config.stored import read_job
from slurmtrain.errors import ConfigError, RunExistsError, RunNotFoundError
from slurmtrain.rundir import RunDir
from slurmtrain.slurm.client import SlurmClient

LOOK_BACK = 4
"""Newest jobs of a run that Slurm is asked about."""


def check_name(run: RunDir, *, resume: bool) -> None:
    """Refuse a name that is taken, or one to resume that is not there. Raises UserError."""
    there = run.path.exists() or run.path.is_symlink()
    if resume and not there:
        raise RunNotFoundError(f"no run {run.name!r} in {run.path.parent}: leave --resume out to begin it")
    if there and not is_run(run.path):
        raise RunExistsError(f"{run.path} exists and is not a run: choose another name with -J NAME, or another --root")
    if there and run.finished.exists() and not resume:
        how = "give a new run a name of its own with -J NAME, or go on to more steps by --resume --set training.steps=N"
        raise RunExistsError(f"run {run.name!r} is finished: {how}")
    if there and not resume:
        raise RunExistsError(
            f"run {run.name!r} exists in {run.path.parent}: go on with it by --resume, or choose another name with -J NAME"
        )


def check_idle(run: RunDir, slurm: SlurmClient, *, own_job: str = "") -> None:
    """Refuse a run that has a job which waits or runs; `own_job`: the allocation around this command. Raises RunExistsError, SlurmError."""
    for job_id in jobs_of(run)[-LOOK_BACK:]:
        info = slurm.job(job_id)
        if info and not info.ended and job_id.partition("_")[0] != own_job:
            raise RunExistsError(_busy(run, job_id, info.state))
    for info in slurm.my_jobs(max_age_s=0)[1]:
        if info.comment == str(run.path) and not info.ended and info.job_id.partition("_")[0] != own_job:
            raise RunExistsError(_busy(run, info.job_id, info.state))


def changed(run: RunDir, job: JobConfig, step: int | None, *, again: bool = False) -> list[Change]:
    """What the job says otherwise than the run did.

    `step`: of the checkpoint that it goes on from; `again`: steps that were made already are made anew. Raises ConfigError for what a
    run cannot change, and for a last step that lies behind it.
    """
    before = read_job(run.job_json)
    found = differences(plain(before), plain(job))
    check_changes(found, durable_step=step)
    if job.entry is not None:
        return found
    finished = run.finished.exists() and not again
    steps, done = job.training.steps, max(step or 0, _finished_at(run, before) if finished else 0)
    if finished and before.target is not None and done < before.training.steps and job.target == before.target:
        problem = f"run {run.name!r} has reached its target at step {done}: set a lower target.below or target.stop=false to go on"
        raise ConfigError(problem, key="target.stop", value=True)
    if steps < done or (finished and steps == done):
        was = f", and was begun with {before.training.steps}" if before.training.steps > done else ""
        more = before.training.steps if was else f"N, more than {done}"
        problem = f"run {run.name!r} is at step {done} already{was}: say --set training.steps={more}, or -J NAME for a new run"
        raise ConfigError(problem, key="training.steps", value=steps)
    return found


def _finished_at(run: RunDir, before: JobConfig) -> int:
    """The step at which a finished run ended: its last, unless a target ended it."""
    try:
        return int(json.loads(run.finished.read_bytes())["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return before.training.steps


def _busy(run: RunDir, job_id: str, state: str) -> str:
    return f"job {job_id} of run {run.name!r} is {state}: first slurmtrain stop {run.name} (or cancel), then resume"
