"""Weights that a job begins with, looked at before it is submitted: they are there, and fit the model by name, shape and type."""

from __future__ import annotations

import click

from slurmtrain.checkpoint.fitting import fit_of_checkpoint
from slurmtrain.checkpoint.hf_check import check_weights
from slurmtrain.cli.chosen import chosen
from slurmtrain.config.job import JobConfig
from slurmtrain.config.weights import KEY, RunWeights, run_weights
from slurmtrain.errors import CheckpointError, ConfigError, RunNotFoundError
from slurmtrain.rundir import RunDir


def with_checked_weights(job: JobConfig, *, where: str) -> JobConfig:
    """The job, in which the weights of another run name their step. Raises ConfigError."""
    weights = job.model.weights
    source = run_weights(weights)
    if weights is None:
        return job
    if source is None:
        _tell(str(weights), check_weights(weights, job.model, where=where).words)
        return job
    try:
        here = chosen(RunDir(source.path), source.step)
        fitting = fit_of_checkpoint(here.manifest, job.model)
    except (CheckpointError, RunNotFoundError) as error:
        raise ConfigError(str(error), where=where, key=KEY, value=str(weights)) from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", where=where, key=KEY, value=str(weights)) from None
    named = RunWeights(source.path, here.step).to_path()
    _tell(str(named), fitting.words)
    return job.model_copy(update={"model": job.model.model_copy(update={"weights": named})})


def _tell(weights: str, words: str) -> None:
    if words:
        click.echo(f"weights of {weights}{words}", err=True)
