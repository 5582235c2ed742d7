"""`model.weights`: a folder of Hugging Face safetensors. Its shape lies under the keys that the job says; its files are looked up.

config.json                            the shape (hf)
model.safetensors                      all tensors, or
model.safetensors.index.json           {"weight_map": {tensor: file}} and the files that it names

The tensors themselves are read by `checkpoint.hf`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurmtrain.config.draft import FILE, Draft
from slurmtrain.config.expand import expand
from slurmtrain.config.hf import CONFIG_NAME, SHAPE, model_keys, read_config
from slurmtrain.errors import ConfigError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
KEY = "model.weights"


def merge_weights(draft: Draft, beside: Path, env: Mapping[str, str]) -> None:
    """Put the shape of `model.weights` under the keys that the job and its preset say; the path, seen from `beside`, absolute.

    Raises ConfigError where there are no such weights, or the job says another shape than theirs.
    """
    said, model = draft.get(KEY), draft.get("model")
    if not isinstance(said, str) or not isinstance(model, dict):
        return
    folder = Path(os.path.abspath(beside / expand(said, env, where=draft.where(KEY), key=KEY)))  # noqa: PTH100 links stay
    try:
        theirs = model_keys(read_config(folder), str(folder / CONFIG_NAME))
        weight_files(folder)
    except ConfigError as error:
        raise ConfigError(error.problem, where=error.where or draft.where(KEY), key=error.key, value=error.value) from None
    _check_shape(draft, model, theirs, folder)
    for key in theirs.keys() - model.keys():
        draft.said[f"model.{key}"] = (FILE, str(folder / CONFIG_NAME))
    draft.values["model"] = {**theirs, **model, "weights": str(folder)}


def _check_shape(draft: Draft, model: Mapping[str, Any], theirs: Mapping[str, Any], folder: Path) -> None:
    for key in SHAPE:
        if key in theirs and model.get(key) not in (None, theirs[key]):
            fault = f"the weights in {folder} have {theirs[key]!r}: leave it out"
            raise ConfigError(fault, where=draft.where(f"model.{key}"), key=f"model.{key}", value=model[key])
    if model.get("tied_embeddings") is True and not theirs["tied_embeddings"]:
        fault = f"the weights in {folder} have a head of their own, which would be lost: leave it out"
        raise ConfigError(fault, where=draft.where("model.tied_embeddings"), key="model.tied_embeddings", value=True)


def weight_files(folder: Path) -> Mapping[str, Path] | Path:
    """The file of each tensor by the tensor's name, or the one file that has them all. Raises ConfigError for one that is missing."""
    index = folder / INDEX
    if not index.is_file():
        single = folder / SINGLE
        if not single.is_file():
            raise ConfigError(_nothing(folder), key=KEY, value=str(folder))
        return single
    try:
        files = {str(name): folder / file for name, file in json.loads(index.read_bytes())["weight_map"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError('is damaged: no JSON object with a "weight_map"', where=str(index)) from None
    for path in sorted(set(files.values())):
        if not path.is_file():
            raise ConfigError(f"names {path.name}, which is not beside it: fetch the missing file", where=str(index))
    return files


def _nothing(folder: Path) -> str:
    others = sorted(path.name for pattern in ("*.bin", "*.pth", "*.safetensors") for path in folder.glob(pattern))
    there = f"there is {others[0]}" if others else "there is nothing of the kind"
    return f"has neither {SINGLE} nor {INDEX} ({there}): give a folder as save_pretrained of transformers writes it"
