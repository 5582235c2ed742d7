"""A checkpoint of step 0 out of Hugging Face safetensors: the weights alone, under our names, in fp32, from which runs can start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from slurmtrain.checkpoint.cuts import Sizing
from slurmtrain.checkpoint.finite import nonfinite
from slurmtrain.checkpoint.fitting import named
from slurmtrain.checkpoint.hf import load_weights
from slurmtrain.checkpoint.hf_check import check_weights
from slurmtrain.checkpoint.layout import BoxSpec
from slurmtrain.checkpoint.making import Advance, Kinds, Made, in_batches, make, part_of, plan
from slurmtrain.config.model import ModelConfig
from slurmtrain.errors import CheckpointError, ConfigError
from slurmtrain.models.names import global_shapes
from slurmtrain.store.manifest import Manifest
from slurmtrain.syscalls import SYSTEM, Syscalls

_PREFIX = "model/"


def check_import(folder: Path, model: ModelConfig, *, where: str = "") -> str:
    """Every tensor is there; what to say of those that are left aside. Raises ConfigError as `hf_check.check_weights`."""
    fitting = check_weights(folder, model, where=where)
    if fitting.first:
        fault = f"no tensor {named(fitting.first)}: a run gives first values to what is missing, a checkpoint holds all of it"
        raise ConfigError(fault, where=where, key="model.weights_missing")
    return fitting.words.removeprefix("; ")


def imported_kinds(model: ModelConfig) -> Kinds:
    """What `import_weights` writes."""
    return {f"{_PREFIX}{name}": (shape, "float32") for name, shape in global_shapes(model).items()}


def import_weights(
    folder: Path, model: ModelConfig, out: Path, sizing: Sizing, *, t: float, calls: Syscalls = SYSTEM, advance: Advance = lambda _: None
) -> Made:
    """Write the weights of a folder as the new folder `out`, a checkpoint of time `t`; `check_import` has looked at it.

    Errors are those of `hf.load_weights` and `making.make`; CheckpointError also for a value that is not finite.
    """
    casts: dict[str, None] = {}

    def fill(batch: Sequence[BoxSpec], arrays: Sequence[np.ndarray]) -> None:
        parts = [replace(part_of(spec), name=spec.name.removeprefix(_PREFIX)) for spec in batch]
        loaded = load_weights(folder, model, [(part, torch.from_numpy(array)) for part, array in zip(parts, arrays, strict=True)])
        casts.update(dict.fromkeys(loaded.casts))
        for part, array in zip(parts, arrays, strict=True):
            if nonfinite(array, "float32"):
                raise CheckpointError(f"{folder}: {part.name} holds a value that is not finite in float32: no run can start from it")

    header = Manifest(0, 0, 0, {}, {}, {}, {"v": 1, "origin": str(folder)}, t=t)
    kinds = imported_kinds(model)
    made = make(out, header, kinds, plan(kinds, sizing), lambda specs: in_batches(specs, fill), calls=calls, advance=advance)
    return Made(made, tuple(f"cast from {cast}" for cast in casts))
