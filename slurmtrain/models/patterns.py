"""Do patterns of names in a job fit the model's tensors?"""

from __future__ import annotations

from fnmatch import fnmatchcase

from slurmtrain.config.job import JobConfig
from slurmtrain.errors import ConfigError
from slurmtrain.models.names import global_shapes


def check_patterns(job: JobConfig, *, where: str = "") -> None:
    """Raise ConfigError for a pattern of optimizer.no_decay or model.weights_missing that fits no tensor: misspelt, it would do nothing."""
    names = list(global_shapes(job.model))
    said = {"optimizer.no_decay": job.optimizer.no_decay, "model.weights_missing": job.model.weights_missing}
    for key, patterns in said.items():
        for number, pattern in enumerate(patterns):
            if not any(fnmatchcase(name, pattern) for name in names):
                fault = f"fits no tensor of the model: its names are {_shown(names)}; * stands for any characters"
                raise ConfigError(fault, where=where, key=f"{key}[{number}]", value=pattern)


def _shown(names: list[str]) -> str:
    """Those of one layer stand for all."""
    return ", ".join(name for name in names if not name.startswith("layers.") or name.startswith("layers.0."))
