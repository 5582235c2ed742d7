"""Do the keys of [recovery.numerics] and [recovery.corruption] do anything for this job? Raises ConfigError for the first that does not."""

from __future__ import annotations

from typing import Any

from slurmtrain.config.job import JobConfig
from slurmtrain.config.recovery import NumericsConfig
from slurmtrain.config.refusal import refuse

_AFTER_GOING_BACK = ("older_by", "skip_data", "lr_factor")


def check_recovery(job: JobConfig) -> None:
    """What is done after going back needs a way back; what a spike is needs a rule."""
    wish = job.recovery.numerics
    if not wish.rollbacks:
        _check_unused(job, _AFTER_GOING_BACK, "is of going back to a checkpoint: give rollbacks, such as 1, or leave it out")
    if wish.lr_factor == 1.0:
        _check_unused(job, ("for_steps",), "is of lr_factor: give it, such as 0.5, or leave for_steps out")
    if not wish.spike_zscore:
        _check_unused(job, ("spike_window",), "is of spike_zscore: give it, such as 6, or leave spike_window out")


def check_compared(job: JobConfig, dp: int) -> None:
    """Whether two ranks hold the same at all."""
    every, parallel = job.recovery.corruption.every_steps, job.parallel
    sharded = parallel.dp_mode in {"zero2", "fsdp"}
    copies = dp // (parallel.dp_shard or dp) if sharded else dp * parallel.cp
    if every and copies == 1:
        fault = "no two ranks hold the same parameters in this layout: nothing could be compared"
        cure = "give parallel.dp_shard (HSDP), or leave it out" if sharded and dp > 1 else "leave it out, or use more data-parallel ranks"
        refuse(job, "recovery.corruption.every_steps", every, f"{fault}: {cure}")


def _check_unused(job: JobConfig, names: tuple[str, ...], problem: str) -> None:
    for name in names:
        value: Any = getattr(job.recovery.numerics, name)
        if value != NumericsConfig.model_fields[name].default:
            refuse(job, f"recovery.numerics.{name}", value, problem)
