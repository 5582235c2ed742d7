"""A checkpoint as a folder that transformers reads: sharded safetensors with their index, and config.json.

Every tensor has the type that was asked for; a tied model has no head; a shard ends before it passes its bound (a tensor larger than
the bound is a shard of its own, and one shard at a time is in memory). The folder appears whole, by one rename.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, TensorSpec, serialize_file

from slurmtrain.atomic import Disk, fsync_file, to_json
from slurmtrain.boxes import Part, whole
from slurmtrain.checkpoint.casts import FLOATS, cast, finite
from slurmtrain.checkpoint.dtypes import carrier
from slurmtrain.checkpoint.hf_config import hf_config
from slurmtrain.checkpoint.hf_names import Place, places
from slurmtrain.checkpoint.load import PartReader
from slurmtrain.checkpoint.newfolder import check_out, new_folder
from slurmtrain.config.hf import CONFIG_NAME
from slurmtrain.config.job import JobConfig
from slurmtrain.config.weights import INDEX, SINGLE
from slurmtrain.errors import CheckpointError, ConfigError, CorruptCheckpointError, UserError
from slurmtrain.models.names import global_shapes
from slurmtrain.rundir import RunDir
from slurmtrain.store.leases import lease
from slurmtrain.store.listing import Found, newest_verified, steps_present
from slurmtrain.store.manifest import Manifest
from slurmtrain.store.verify import cheap_problems, read_manifest
from slurmtrain.units import format_size

DTYPES: Mapping[str, str] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
BESIDE = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.model", "vocab.json", "merges.txt")
"""Files of the weights that a run started from, carried over; so are the ids below."""
_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True)
class Exported:
    """What an export wrote: of which step, number of tensors, bytes of them, number of files, files carried over, and newer checkpoints
    that did not verify: (step, why).
    """

    step: int
    tensors: int
    bytes: int
    shards: int
    beside: tuple[str, ...]
    passed_over: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Shard:
    """Names of the Hugging Face tensors of one file, and their bytes."""

    names: tuple[str, ...]
    bytes: int


def export(
    run: RunDir, job: JobConfig, out: Path, *, disk: Disk, step: int | None = None, dtype: str = "fp32", max_bytes: int, ema: bool = False
) -> Exported:
    """Write the weights of a run's checkpoint (default: the newest that verifies) as the new folder `out`.

    Raises UserError for a folder that is there, a step that is not, and `ema` of a run that keeps none; CorruptCheckpointError for a
    checkpoint that does not verify; CheckpointError for a value that the type cannot hold, and when the disk refuses.
    """
    config = check_export(run, job, out, step=step, dtype=dtype)
    found = find_step(run, step)
    sources = _Sources(found, job, "ema" if ema else "model")
    with lease(run, found.step, "export"), new_folder(out, disk=disk) as staging:
        shards = _write_all(staging, sources, DTYPES[dtype], max_bytes)
        beside = carry_over(job.model.weights, staging, config)
        disk.write(staging / CONFIG_NAME, to_json(config))
    return Exported(found.step, sum(len(s.names) for s in shards), sum(s.bytes for s in shards), len(shards), beside, found.passed_over)


def check_export(run: RunDir, job: JobConfig, out: Path, *, step: int | None = None, dtype: str = "fp32") -> dict[str, Any]:
    """The config.json that an export would write. Raises UserError for what `export` would refuse before it reads a checkpoint."""
    check_out(out)
    steps = steps_present(run.checkpoints)
    if step is not None and step not in steps:
        there = ", ".join(map(str, steps)) or "none"
        raise UserError(f"run {run.name} has no checkpoint of step {step}: there are {there}")
    if not steps:
        raise UserError(f"run {run.name} has no checkpoint yet")
    return hf_config(job.model, length=job.training.sequence_length, dtype=DTYPES[dtype])


def find_step(run: RunDir, step: int | None) -> Found:
    """The checkpoint of a step that is there, whose bytes are verified when they are read; or the newest that verifies.

    Raises UserError where there is none, CorruptCheckpointError for one that does not verify.
    """
    if step is None:
        found = newest_verified(run.checkpoints)
        if found is None:
            raise UserError(f"run {run.name} has no checkpoint yet")
        return found
    folder = run.checkpoint(step)
    manifest = read_manifest(folder)
    if problems := cheap_problems(folder, manifest):
        raise CorruptCheckpointError(f"{folder}: {problems[0]}")
    return Found(step, folder, manifest)


class _Sources:
    """Which global tensors make up each Hugging Face tensor, and where the checkpoint holds them."""

    def __init__(self, found: Found, job: JobConfig, kind: str) -> None:
        self.found, self.kind = found, kind
        self.shapes = global_shapes(job.model)
        self.places: dict[str, list[tuple[str, Place]]] = {}
        for name, place in places(job.model).items():
            self.places.setdefault(place.name, []).append((name, place))
        if kind == "ema" and f"ema/{next(iter(self.shapes))}" not in found.manifest.tensors:
            fault = "keeps no moving average of its weights: leave out --ema (training.ema_decay makes one)"
            raise ConfigError(fault, where=f"the checkpoint of step {found.step}")

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a Hugging Face tensor."""
        return self.places[name][0][1].shape

    def assemble(self, name: str, dtype: str, reader: PartReader) -> np.ndarray:
        """A Hugging Face tensor in the carrier of a type."""
        target = np.empty(self.shape(name), carrier(dtype))
        for ours, place in self.places[name]:
            shape = self.shapes[ours]
            box = place.box(whole(shape))
            values = cast(*self._stored(ours, shape, reader), dtype)
            region = tuple(slice(low, high) for low, high in zip(box.offset, box.stop, strict=True))
            target[region] = values.T if place.transposed else values
        return target

    def _stored(self, ours: str, shape: tuple[int, ...], reader: PartReader) -> tuple[np.ndarray, str]:
        """A whole global tensor as the checkpoint holds it, and its type there."""
        name = f"{self.kind}/{ours}"
        kept = _kind(self.found.manifest, name)
        array = np.empty(shape, carrier(kept))
        reader.fill(Part(name, shape, whole(shape), tuple((0, n) for n in shape)), kept, array)
        return array, kept


def _kind(manifest: Manifest, name: str) -> str:
    entry = manifest.tensors.get(name)
    kept = entry.dtype if entry else "float32"  # what is missing is told by the reader
    if kept not in FLOATS:
        raise CheckpointError(f"{name}: elements of type {kept} are no weights")
    return kept


def plan_shards(sizes: Mapping[str, int], max_bytes: int) -> list[Shard]:
    """Tensors in their order, cut so that no shard passes the bound, save one tensor that does so alone.

    >>> plan_shards({"a": 4, "b": 4, "c": 9, "d": 1}, 8)
    [Shard(names=('a', 'b'), bytes=8), Shard(names=('c',), bytes=9), Shard(names=('d',), bytes=1)]
    """
    groups: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if not groups or size > room:
            groups.append([])
            room = max_bytes
        groups[-1].append(name)
        room -= size
    return [Shard(tuple(group), sum(sizes[name] for name in group)) for group in groups]


def _write_all(staging: Path, sources: _Sources, dtype: str, max_bytes: int) -> list[Shard]:
    width = carrier(dtype).itemsize
    shards = plan_shards({name: prod(sources.shape(name)) * width for name in sources.places}, max_bytes)
    names = [SINGLE] if len(shards) == 1 else [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    with PartReader(sources.found.folder, sources.found.manifest) as reader:
        for file, shard in zip(names, shards, strict=True):
            _write_shard(staging / file, {name: sources.assemble(name, dtype, reader) for name in shard.names}, dtype)
    if len(shards) > 1:
        weight_map = {name: file for file, shard in zip(names, shards, strict=True) for name in shard.names}
        index = {"metadata": {"total_size": sum(shard.bytes for shard in shards)}, "weight_map": weight_map}
        (staging / INDEX).write_bytes(to_json(index))
        fsync_file(staging / INDEX)
    return shards


def _write_shard(path: Path, arrays: Mapping[str, np.ndarray], dtype: str) -> None:
    for name, array in arrays.items():
        if not finite(array, dtype):
            raise CheckpointError(f"{name}: holds a value that is not finite as {dtype}: export another type, or another step")
    specs = {
        name: TensorSpec(dtype=dtype, shape=array.shape, data_ptr=array.ctypes.data, data_len=array.nbytes)
        for name, array in arrays.items()
    }
    try:
        serialize_file(specs, path, {"format": "pt"})
    except SafetensorError as error:
        raise CheckpointError(f"{path}: cannot be written ({format_size(sum(a.nbytes for a in arrays.values()))}): {error}") from error
    fsync_file(path)


def carry_over(weights: Path | None, folder: Path, config: dict[str, object]) -> tuple[str, ...]:
    """Copy the tokenizer's files of the weights that the run started from; put their token ids, and a longer reach, into `config`."""
    if weights is None or not weights.is_dir():
        return ()
    beside = [name for name in BESIDE if (weights / name).is_file()]
    for name in beside:
        shutil.copyfile(weights / name, folder / name)
        fsync_file(folder / name)
    config.update(_inherited(weights, config, _TOKEN_IDS))
    return tuple(beside)


def _inherited(weights: Path, config: Mapping[str, object], names: Sequence[str]) -> dict[str, object]:
    try:
        values = json.loads((weights / CONFIG_NAME).read_bytes())
    except (OSError, ValueError):
        return {}  # moved or changed since the run began: the export is whole without
    found = {name: values[name] for name in names if name in values}
    reach, ours = values.get("max_position_embeddings"), config.get("max_position_embeddings")
    return found | ({"max_position_embeddings": reach} if isinstance(reach, int) and isinstance(ours, int) and reach > ours else {})
