"""Whether a folder of weights has what a model needs, told by the heads of its files alone: no torch, and no tensor is read."""

from __future__ import annotations

from pathlib import Path

from slurmtrain.checkpoint.hf_names import base_name, places, surplus
from slurmtrain.config.hf import CONFIG_NAME, model_keys, read_config
from slurmtrain.config.model import ModelConfig
from slurmtrain.config.weights import INDEX, KEY, Stored, read_head, shards, weight_files
from slurmtrain.errors import ConfigError
from slurmtrain.models.names import HEAD
from slurmtrain.units import counted

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


def check_weights(folder: Path, model: ModelConfig, *, where: str = "") -> None:
    """The tensors are those of the model. Raises ConfigError naming the first that is missing, too many, or of another shape or type."""
    found = stored_tensors(folder)
    if unknown := surplus(set(found), model):
        more = f" (and {counted(len(unknown) - 1, 'more tensor')})" if len(unknown) > 1 else ""
        _refuse(folder, where, f"{unknown[0]}{more}: this {model.family} model has no such tensor")
    by_base = {base_name(name): one for name, one in found.items()}
    for ours, place in places(model).items():
        stored = by_base.get(base_name(place.name))
        if stored is None and not (ours == HEAD and (model.tied_embeddings or _tied(folder))):
            _refuse(folder, where, f"no tensor {place.name}, which this model needs, among the {len(found)} that it holds")
        if stored is not None and stored.shape != place.shape:
            _refuse(folder, where, f"{place.name} has shape {stored.shape}, {place.shape} in this model")
        if stored is not None and stored.dtype not in TYPES:
            _refuse(folder, where, f"{place.name} has elements of type {stored.dtype}: use weights in {', '.join(TYPES)}")


def _tied(folder: Path) -> bool:
    return bool(model_keys(read_config(folder), str(folder / CONFIG_NAME))["tied_embeddings"])


def _refuse(folder: Path, where: str, problem: str) -> None:
    raise ConfigError(problem, where=where, key=KEY, value=str(folder))
