"""What a checkpoint of the trainer holds, as parts of global tensors and a few plain values; and how it comes back.

    model/<name>                        the global tensors of models.names
    optimizer/<name>/exp_avg, exp_avg_sq    their moments, of the same shapes
    rng/<coordinates>/cpu, cuda         torch's generators of one rank, keyed by its place in the mesh
    state                               steps, samples consumed, optimiser updates; seed, sequence length and data they count in

Hyper-parameters are the configuration's and are not stored: a changed learning rate takes effect on resume.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from slurmtrain.boxes import Box, Part
from slurmtrain.errors import CheckpointError, ConfigError
from slurmtrain.parallel.parameters import LocalParameter
from slurmtrain.store.manifest import Manifest
from slurmtrain.train.optimizer import AdamW

Entry = tuple[Part, Tensor]


@dataclass
class Progress:
    """How far a run has come. `position`: samples consumed by the whole run, over epochs; `tokens`: all tokens trained."""

    step: int = 0
    tokens: int = 0
    position: int = 0


@dataclass(frozen=True)
class Source:
    """What positions count in: a run that resumes must read the same samples in the same order."""

    seed: int
    sequence_length: int
    data: str
    """The sum of the token file."""


def _renamed(part: Part, name: str) -> Part:
    return replace(part, name=name)


def tensors(parameters: Sequence[LocalParameter], optimizer: AdamW) -> Iterator[tuple[LocalParameter, Part, Tensor]]:
    """Weights and moments of this rank with their parts, under the names of a checkpoint."""
    for parameter, (exp_avg, exp_avg_sq) in zip(parameters, optimizer.moments, strict=True):
        for part in parameter.parts:
            yield parameter, _renamed(part, f"model/{part.name}"), parameter.tensor
            yield parameter, _renamed(part, f"optimizer/{part.name}/exp_avg"), exp_avg
            yield parameter, _renamed(part, f"optimizer/{part.name}/exp_avg_sq"), exp_avg_sq


def owned(parameters: Sequence[LocalParameter], optimizer: AdamW) -> list[Entry]:
    """What this rank saves: of copies the lowest coordinate's."""
    return [(part, tensor) for parameter, part, tensor in tensors(parameters, optimizer) if parameter.owned]


def wanted(parameters: Sequence[LocalParameter], optimizer: AdamW) -> list[Entry]:
    """What this rank loads: all that it holds."""
    return [(part, tensor) for _, part, tensor in tensors(parameters, optimizer)]


def place_name(coordinates: Mapping[str, int]) -> str:
    """A rank's place in the mesh as a word.

    >>> place_name({"tp": 1, "cp": 0, "ep": 0, "dp": 3, "pp": 0})
    'pp0-dp3-ep0-cp0-tp1'
    """
    return "-".join(f"{axis}{coordinates[axis]}" for axis in ("pp", "dp", "ep", "cp", "tp"))


def rng_entries(place: str, states: Mapping[str, Tensor]) -> list[Entry]:
    """The generators of one rank (uint8 vectors by device kind) as whole tensors of their own."""
    return [(_whole(f"rng/{place}/{kind}", state), state) for kind, state in states.items()]


def _whole(name: str, tensor: Tensor) -> Part:
    shape = tuple(tensor.shape)
    return Part(name, shape, Box((0,) * len(shape), shape), tuple((0, n) for n in shape))


def stored_here(entries: Sequence[Entry], manifest: Manifest) -> bool:
    """Whether a checkpoint holds all of these tensors in these shapes; under another layout a rank's generators may not be there."""
    return all(part.name in manifest.tensors and manifest.tensors[part.name].shape == part.global_shape for part, _ in entries)


def to_state(progress: Progress, source: Source, updates: int) -> dict[str, Any]:
    """The plain values of a checkpoint; step and tokens are in the manifest's own fields."""
    return {"v": 1, "position": progress.position, "optimizer_updates": updates, **vars(source)}


def from_manifest(manifest: Manifest, source: Source) -> tuple[Progress, int]:
    """(progress, optimiser updates) of a checkpoint.

    Raises ConfigError when it was trained on other samples (seed, sequence length, data), CheckpointError for what is not there.
    """
    state = manifest.state
    try:
        progress = Progress(manifest.step, manifest.tokens, int(state["position"]))
        updates = int(state["optimizer_updates"])
        before = Source(int(state["seed"]), int(state["sequence_length"]), str(state["data"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint of step {manifest.step} lacks the trainer's state: {error!r}") from error
    _check_source(before, source, manifest.step)
    return progress, updates


def _check_source(before: Source, now: Source, step: int) -> None:
    for field, key in (("seed", "training.seed"), ("sequence_length", "training.sequence_length"), ("data", "data.path")):
        was, is_now = getattr(before, field), getattr(now, field)
        if was != is_now:
            fault = f"the checkpoint of step {step} was trained with {was!r}: its place in the data means other samples now"
            raise ConfigError(f"{fault}; put it back, or start a new run", where="job", key=key, value=is_now)
