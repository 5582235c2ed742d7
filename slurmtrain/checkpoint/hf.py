"""First values out of Hugging Face safetensors: each rank reads the boxes that it holds, of any element type, and nothing more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from slurmtrain.boxes import Part
from slurmtrain.checkpoint.fitting import Fit, Shape
from slurmtrain.checkpoint.hf_check import TYPES, fit_of_folder, stored_tensors
from slurmtrain.checkpoint.hf_files import opened, tensor_files
from slurmtrain.checkpoint.hf_names import Place
from slurmtrain.checkpoint.state import dtype_name
from slurmtrain.config.model import ModelConfig
from slurmtrain.errors import CheckpointError
from slurmtrain.units import counted


@dataclass(frozen=True)
class Loaded:
    """What was read: number of boxes, files opened, and the casts that were made, such as "bfloat16 to float32"; `beside`: what did
    not fit and was allowed, in words.
    """

    boxes: int
    files: int
    casts: tuple[str, ...]
    beside: str = ""

    @property
    def line(self) -> str:
        """For the log."""
        cast = f", cast from {' and from '.join(self.casts)}" if self.casts else ""
        return f"{counted(self.boxes, 'tensor')} from {counted(self.files, 'file')}{cast}{self.beside}"


@dataclass(frozen=True)
class _Wish:
    """A box to be read: the global part, the tensor of which a slice is filled, where it lies and under which name in which file."""

    part: Part
    target: torch.Tensor
    place: Place
    name: str
    file: Path


def load_weights(folder: Path, model: ModelConfig, entries: Sequence[tuple[Part, torch.Tensor]]) -> Loaded:
    """Fill the parts of local tensors, named as in `models.names`, in place, on any device; values are cast to the target's type.

    What the job allows to be missing is left as it is. A head of its own starts from the embedding where the weights have theirs tied.
    Raises ConfigError for files that are not there, CheckpointError naming tensor and file for one that is missing, of another shape,
    unknown to the model, or damaged.
    """
    fitting, wishes = _wishes(folder, model, entries)
    files = sorted({wish.file for wish in wishes})
    casts: dict[str, None] = {}
    for file in files:
        with opened(file, "pt") as source, torch.no_grad():
            casts |= dict.fromkeys(cast for wish in wishes if wish.file == file if (cast := _read(source, wish)))
    return Loaded(len(wishes), len(files), tuple(casts), fitting.words)


def _wishes(folder: Path, model: ModelConfig, entries: Sequence[tuple[Part, torch.Tensor]]) -> tuple[Fit, list[_Wish]]:
    files = tensor_files(folder)
    try:
        fitting, where = fit_of_folder(folder, model, _shapes(folder, files, model))
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from None
    wanted = [(part, target, fitting.found[part.name]) for part, target in entries if part.name in fitting.found]
    return fitting, [_Wish(part, target, where[part.name], name, files[name]) for part, target, name in wanted]


def _shapes(folder: Path, files: Mapping[str, Path], model: ModelConfig) -> dict[str, Shape | None]:
    """Shapes decide where tensors may be missing; elsewhere one that differs is told when it is read."""
    if not model.weights_missing:
        return dict.fromkeys(files)
    return {name: one.shape for name, one in stored_tensors(folder).items()}


def _read(source: Any, wish: _Wish) -> str:
    """Read one box; the cast in words, empty where none was needed."""
    try:
        stored = source.get_slice(wish.name)
    except SafetensorError:
        raise CheckpointError(f"{wish.file}: no tensor {wish.name}, which the index says is in it") from None
    shape, kind = tuple(stored.get_shape()), stored.get_dtype()
    if shape != wish.place.shape:
        raise CheckpointError(f"{wish.file}: {wish.name} has shape {shape}, {wish.place.shape} in this model")
    if kind not in TYPES:
        raise CheckpointError(f"{wish.file}: {wish.name} has elements of type {kind}: use weights in {', '.join(TYPES)}")
    box = wish.place.box(wish.part.box)
    values = stored[tuple(slice(low, high) for low, high in zip(box.offset, box.stop, strict=True))]
    region = tuple(slice(low, high) for low, high in wish.part.region)
    wish.target.detach()[region].copy_(values.T if wish.place.transposed else values)
    local = dtype_name(wish.target.dtype)
    return "" if TYPES[kind] == local else f"{TYPES[kind]} to {local}"
