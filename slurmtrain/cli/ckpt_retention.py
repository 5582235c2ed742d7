"""What a job file says of retention."""

from __future__ import annotations

from slurmtrain.config.job import CheckpointConfig
from slurmtrain.store.retention import RetentionPolicy


def policy_of(config: CheckpointConfig) -> RetentionPolicy:
    """What a job's [checkpoint] keeps."""
    return RetentionPolicy(
        keep=config.keep,
        every_steps=config.keep_every_steps,
        every_hours=config.keep_every_hours,
        best=config.keep_best,
        best_metric=config.best_metric,
    )
