"""Whether a folder of weights has what a model needs, told by the heads of its files alone: no torch, and no tensor is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from slurmtrain.checkpoint.fitting import Fit, Shape, fit, renamed
from slurmtrain.checkpoint.hf_names import Place, base_name, means_nothing, places
from slurmtrain.config.hf import CONFIG_NAME, model_keys, read_config
from slurmtrain.config.model import ModelConfig
from slurmtrain.config.weights import INDEX, KEY, Stored, read_head, shards, weight_files
from slurmtrain.errors import CheckpointError, ConfigError
from slurmtrain.models.names import EMBEDDING, HEAD

TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Element types that are read, by their names in a file."""


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """All tensors of a folder by their names there, of several files those that the index names. Raises ConfigError."""
    files, heads = weight_files(folder), {path: read_head(path) for path in shards(folder)}
    if isinstance(files, Path):
        return heads[files]
    for name, path in files.items():
        if name not in heads[path]:
            raise ConfigError(f"no tensor {name}, which {INDEX} says is in it: fetch both again", where=str(path))
    return {name: heads[path][name] for name, path in files.items()}


def check_weights(folder: Path, model: ModelConfig, *, where: str = "") -> Fit:
    """The tensors are those of the model, but for what the job allows; how they fit.

    Raises ConfigError naming those that are missing, too many, or of another shape or type.
    """
    found = stored_tensors(folder)
    try:
        fitting, _ = fit_of_folder(folder, model, {name: one.shape for name, one in found.items()})
    except CheckpointError as error:
        _refuse(folder, where, str(error))
    for name in fitting.found.values():
        if found[name].dtype not in TYPES:
            _refuse(folder, where, f"{name} has elements of type {found[name].dtype}: use weights in {', '.join(TYPES)}")
    return fitting


def fit_of_folder(folder: Path, model: ModelConfig, there: Mapping[str, Shape | None]) -> tuple[Fit, dict[str, Place]]:
    """How the tensors of a folder fit a model, and in which place each of ours lies in the one that is its own there.

    A head of its own starts from the embedding where the weights have theirs tied. Raises CheckpointError, and ConfigError for a
    config.json that is damaged.
    """
    where = places(model)
    if not model.tied_embeddings and base_name(where[HEAD].name) not in renamed(there, model.weights_names, base_name) and _tied(folder):
        where[HEAD] = where[EMBEDDING]
    expected = {ours: (place.name, place.shape) for ours, place in where.items()}
    return fit(there, expected, model, plain=base_name, ignored=means_nothing), where


def _tied(folder: Path) -> bool:
    return bool(model_keys(read_config(folder), str(folder / CONFIG_NAME))["tied_embeddings"])


def _refuse(folder: Path, where: str, problem: str) -> NoReturn:
    raise ConfigError(problem, where=where, key=KEY, value=str(folder))
