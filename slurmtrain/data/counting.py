"""What a run's place in the data counts in: a run that goes on must read the same samples in the same order. No torch, no numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from slurmtrain.config.job import JobConfig
from slurmtrain.data.summary import fingerprint_of
from slurmtrain.errors import ConfigError

_KEYS = {"seed": "training.seed", "sequence_length": "training.sequence_length", "data": "data.path"}


@dataclass(frozen=True)
class Source:
    """`data`: the fingerprint of the tokens (`data.summary`)."""

    seed: int
    sequence_length: int
    data: str


def source_of(job: JobConfig) -> Source:
    """What the positions of this job's run count in. Raises DataError."""
    return Source(job.training.seed, job.training.sequence_length, fingerprint_of(job))


def check_source(before: Mapping[str, Any], now: Source, step: int) -> None:
    """Raise ConfigError where a checkpoint's state says another source; what it does not say is not compared."""
    for field, is_now in asdict(now).items():
        was = before.get(field, is_now)
        if was != is_now:
            told = "on other tokens" if field == "data" else f"with {was!r}"
            fault = f"the checkpoint of step {step} was trained {told}: its place in the data would mean other samples"
            raise ConfigError(
                f"{fault}: put it back, or start a new run", where="job", key=_KEYS[field], value=None if field == "data" else is_now
            )
