"""`model.weights`: a folder of Hugging Face safetensors, or a run. Their shape lies under the keys that the job says.

    run:/runs/a@1200                   the weights of that run's checkpoint; without @: of its newest
    /data/hub/Llama-3.2-1B             config.json                      the shape (hf)
                                       model.safetensors                all tensors, or
                                       model.safetensors.index.json     {"weight_map": {tensor: file}} and the files that it names

The tensors' names and shapes are compared by `checkpoint.fitting`, the tensors themselves read by `checkpoint.hf` and `train.warm`.

>>> run_weights(Path("run:/runs/a@1200")), run_weights(Path("run:/me@site/a")), run_weights(Path("/data/hub/x@2"))
(RunWeights(path=PosixPath('/runs/a'), step=1200), RunWeights(path=PosixPath('/me@site/a'), step=None), None)
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurmtrain.config.draft import FILE, Draft
from slurmtrain.config.expand import expand
from slurmtrain.config.hf import CONFIG_NAME, SHAPE, model_keys, read_config
from slurmtrain.errors import ConfigError
from slurmtrain.rundir import RunDir

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
KEY = "model.weights"
RUN = "run:"
_ALONG = ("rope_theta", "rope_scaling", "window", "norm_eps", "tied_embeddings")
"""Of a run's [model], besides its shape: what its weights were trained with."""
_LENGTH = struct.Struct("<Q")
_MOST_HEAD = 100 << 20
"""The library reads no longer one."""
_POINTER = b"version "


@dataclass(frozen=True)
class RunWeights:
    """The weights of a run's checkpoint; `step` None: of its newest."""

    path: Path
    step: int | None

    def to_path(self) -> Path:
        """As `model.weights` says it."""
        return Path(f"{RUN}{self.path}" + ("" if self.step is None else f"@{self.step}"))


def run_weights(weights: Path | None) -> RunWeights | None:
    """None for weights that are no run's."""
    text = str(weights)
    if weights is None or not text.startswith(RUN):
        return None
    path, _, step = text.removeprefix(RUN).rpartition("@")
    if path and step.isascii() and step.isdecimal():
        return RunWeights(Path(path), int(step))
    return RunWeights(Path(text.removeprefix(RUN)), None)


def absolute(said: str | Path, beside: Path, env: Mapping[str, str], where: str) -> Path:
    """The path of `model.weights`, seen from `beside`, with ~ and $VARIABLES filled in. Raises ConfigError."""
    source = run_weights(Path(said))
    path = Path(os.path.abspath(beside / expand(source.path if source else said, env, where=where, key=KEY)))  # noqa: PTH100 links stay
    return RunWeights(path, source.step).to_path() if source else path


def merge_weights(draft: Draft, beside: Path, env: Mapping[str, str]) -> None:
    """Put the shape of `model.weights` under the keys that the job and its preset say; the path, seen from `beside`, absolute.

    Raises ConfigError where there are no such weights, or the job says another shape than theirs.
    """
    said, model = draft.get(KEY), draft.get("model")
    if not isinstance(said, str) or not isinstance(model, dict):
        return
    weights = absolute(said, beside, env, draft.where(KEY))
    try:
        theirs, told_by = _shape_of_run(weights) if run_weights(weights) else _shape_of_folder(weights)
    except ConfigError as error:
        raise ConfigError(error.problem, where=error.where or draft.where(KEY), key=error.key, value=error.value) from None
    _check_shape(draft, model, theirs, weights)
    for key in theirs.keys() - model.keys():
        draft.said[f"model.{key}"] = (FILE, told_by)
    draft.values["model"] = {**theirs, **model, "weights": str(weights)}


def _shape_of_folder(folder: Path) -> tuple[dict[str, Any], str]:
    """Keys of [model], and the file that says them."""
    theirs = model_keys(read_config(folder), str(folder / CONFIG_NAME))
    weight_files(folder)
    return theirs, str(folder / CONFIG_NAME)


def _shape_of_run(weights: Path) -> tuple[dict[str, Any], str]:
    source = run_weights(weights)
    assert source is not None
    told_by = RunDir(source.path).job_json
    try:
        model = json.loads(told_by.read_bytes())["model"]
        theirs = {key: model[key] for key in (*SHAPE, *_ALONG) if model.get(key) is not None}
    except OSError:
        raise ConfigError(
            f"there is no run in {source.path} (no {told_by.name} that can be read): give the path of its folder",
            key=KEY,
            value=str(weights),
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ConfigError("is damaged: it tells no model", where=str(told_by)) from None
    return theirs, str(told_by)


def _check_shape(draft: Draft, model: Mapping[str, Any], theirs: Mapping[str, Any], weights: Path) -> None:
    """Where tensors may be missing, or be too many, they tell themselves what does not fit."""
    for key in () if model.get("weights_missing") or model.get("weights_surplus") else SHAPE:
        if key in theirs and model.get(key) not in (None, theirs[key]):
            fault = f"the weights in {weights} have {theirs[key]!r}: leave it out"
            raise ConfigError(fault, where=draft.where(f"model.{key}"), key=f"model.{key}", value=model[key])
    if model.get("tied_embeddings") is True and not theirs["tied_embeddings"]:
        fault = f"the weights in {weights} have a head of their own, which would be lost: leave it out"
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
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ConfigError('is damaged: no JSON object with a "weight_map"', where=str(index)) from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", where=str(index)) from None
    if not files:
        raise ConfigError('is damaged: its "weight_map" names no tensor', where=str(index))
    for path in sorted(set(files.values())):
        if not path.is_file():
            raise ConfigError(f"names {path.name}, which is not beside it: fetch the missing file", where=str(index))
    return files


def shards(folder: Path) -> list[Path]:
    """The files that hold the tensors, each once. Raises ConfigError."""
    found = weight_files(folder)
    return [found] if isinstance(found, Path) else sorted(set(found.values()))


@dataclass(frozen=True)
class Stored:
    """A tensor as a file of safetensors says it: its type's name (F32, BF16, ..) and shape."""

    dtype: str
    shape: tuple[int, ...]


def read_head(path: Path) -> dict[str, Stored]:
    """The tensors of a file, which is as long as its head says: the head's length (uint64), the head (JSON), the tensors' bytes.

    (huggingface/safetensors, README, "Format".) Raises ConfigError for one that is cut off, is something else, or cannot be read.
    """
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            begin = file.read(_LENGTH.size)
            length = _LENGTH.unpack(begin)[0] if len(begin) == _LENGTH.size else size
            head = file.read(length) if length <= min(size - _LENGTH.size, _MOST_HEAD) else b""
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", where=str(path)) from None
    if begin == _POINTER:
        raise ConfigError("is a pointer of Git LFS, not the file: fetch it by git lfs pull", where=str(path))
    try:
        entries = {name: one for name, one in json.loads(head).items() if name != "__metadata__"}
        want = max((int(one["data_offsets"][1]) for one in entries.values()), default=0)
        stored = {name: Stored(str(one["dtype"]), tuple(map(int, one["shape"]))) for name, one in entries.items()}
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise ConfigError(f"cut off, or no safetensors ({size} bytes): fetch it again", where=str(path)) from None
    if (has := size - _LENGTH.size - length) != want:
        raise ConfigError(f"cut off or damaged: {has} bytes of tensors, {want} were written: fetch it again", where=str(path))
    return stored


def _nothing(folder: Path) -> str:
    others = sorted(path.name for pattern in ("*.bin", "*.pth", "*.safetensors") for path in folder.glob(pattern))
    there = f"there is {others[0]}" if others else "there is nothing of the kind"
    return f"has neither {SINGLE} nor {INDEX} ({there}): give a folder as save_pretrained of transformers writes it"
