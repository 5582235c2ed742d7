"""What a checkpoint of the trainer holds, as parts of global tensors and a few plain values; and how it comes back.

    model/<name>                    the global tensors of models.names
    optimizer/<name>/<kind>         the optimiser's state of each, by its kinds: exp_avg, exp_avg_sq; momentum; row_var, col_var, variance
    ema/<name>                      the moving average of the weights, where one is kept
    rng/<coordinates>/cpu, cuda     torch's generators of one rank, keyed by its place in the mesh
    state                           samples consumed, optimiser updates, seconds of training, loss scale; seed, sequence length and data
                                    that the samples count in

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
from slurmtrain.train.ema import Average
from slurmtrain.train.matrix import state_part
from slurmtrain.train.optimizer import Optimizer

Entry = tuple[Part, Tensor]


@dataclass
class Progress:
    """How far a run has come. `position`: samples consumed by the whole run, over epochs; `tokens`: all tokens trained.

    `seconds`: spent in training, of all attempts together.
    """

    step: int = 0
    tokens: int = 0
    position: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Source:
    """What positions count in: a run that resumes must read the same samples in the same order."""

    seed: int
    sequence_length: int
    data: str
    """The sum of the token file."""


def _renamed(part: Part, name: str) -> Part:
    return replace(part, name=name)


def tensors(
    parameters: Sequence[LocalParameter], optimizer: Optimizer, average: Average | None = None
) -> Iterator[tuple[LocalParameter, Part, Tensor]]:
    """Weights, optimiser states and averages of this rank with their parts, under the names of a checkpoint."""
    states = optimizer.states()
    for index, parameter in enumerate(parameters):
        for number, part in enumerate(parameter.parts):
            yield parameter, _renamed(part, f"model/{part.name}"), parameter.tensor
            for kind, kept in states.items():
                if (tensor := kept[index]) is not None:
                    yield parameter, _renamed(state_part(kind, part, number), f"optimizer/{part.name}/{kind}"), tensor
            if average is not None:
                yield parameter, _renamed(part, f"ema/{part.name}"), average.values[index]


def owned(parameters: Sequence[LocalParameter], optimizer: Optimizer, average: Average | None = None) -> list[Entry]:
    """What this rank saves: of copies the lowest coordinate's."""
    return [(part, tensor) for parameter, part, tensor in tensors(parameters, optimizer, average) if parameter.owned]


def wanted(parameters: Sequence[LocalParameter], optimizer: Optimizer, average: Average | None, manifest: Manifest) -> list[Entry]:
    """What this rank loads of a checkpoint: all that it holds, but for an average where the checkpoint has none (`has_average`).

    Raises ConfigError when another optimiser made it.
    """
    entries = [(part, tensor) for _, part, tensor in tensors(parameters, optimizer, average if has_average(manifest) else None)]
    if (strange := _strange(entries, manifest, optimizer)) is not None:
        fault = f"another optimizer made the checkpoint of step {manifest.step}, which has {strange}"
        raise ConfigError(f"{fault}: put it back, or start a new run", where="job", key="optimizer.name")
    return entries


def _strange(entries: Sequence[Entry], manifest: Manifest, optimizer: Optimizer) -> str | None:
    """What of the optimiser's state is not as it should be. Momentum may be left behind: SGD goes on without."""
    lacking = next((part.name for part, _ in entries if part.name.startswith("optimizer/") and part.name not in manifest.tensors), None)
    if lacking is not None:
        return f"no {lacking}"
    known = {*optimizer.states(), "momentum"}
    return next((name for name in manifest.tensors if name.startswith("optimizer/") and name.rpartition("/")[2] not in known), None)


def has_average(manifest: Manifest) -> bool:
    """Whether a checkpoint holds an average of the weights; where not, one that is wanted starts at the weights (`Average.restart`)."""
    return any(name.startswith("ema/") for name in manifest.tensors)


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


def to_state(progress: Progress, source: Source, updates: int, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The plain values of a checkpoint; step and tokens are in the manifest's own fields. `more`: loss scale and the like."""
    here = {"v": 1, "position": progress.position, "seconds": progress.seconds, "optimizer_updates": updates}
    return {**here, **vars(source), **(more or {})}


def from_manifest(manifest: Manifest, source: Source) -> tuple[Progress, int]:
    """(progress, optimiser updates) of a checkpoint; `seconds` is 0 where the first release wrote it.

    Raises ConfigError when it was trained on other samples (seed, sequence length, data), CheckpointError for what is not there.
    """
    state = manifest.state
    try:
        progress = Progress(manifest.step, manifest.tokens, int(state["position"]), float(state.get("seconds", 0.0)))
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
