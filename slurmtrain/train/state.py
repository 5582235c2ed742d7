"""What a checkpoint of the trainer holds, as parts of global tensors and a few plain values; and how it comes back.

    model/<name>                    the global tensors of models.names
    optimizer/<name>/<kind>         the optimiser's state of each, by its kinds: exp_avg, exp_avg_sq; momentum; row_var, col_var, variance
    ema/<name>                      the moving average of the weights, where one is kept
    rng/<coordinates>/cpu, cuda     torch's generators of one rank, keyed by its place in the mesh
    state                           samples consumed, optimiser updates, seconds of training, loss scale, newest metrics; seed, sequence
                                    length and data that the samples count in; the job, versions and code that made it (provenance)

Hyper-parameters are the configuration's: a changed learning rate takes effect on resume. The job in a checkpoint is there to be read.

Generators under another layout: a rank takes the state that lies under its own place, axis by axis. A rank whose place the checkpoint
does not have (an axis has grown), or not all of whose kinds (a GPU now, a CPU then), is seeded from the run's seed, the step and its
place; states of places that are no longer there are left. So no two ranks draw the same numbers, the same layouts on the same way give
the same run, and a run that keeps its mesh repeats the unbroken one bit for bit; with dropout another mesh gives other masks, as it
would have from the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from slurmtrain.boxes import Box, Part
from slurmtrain.checkpoint.state import TensorSource
from slurmtrain.data.counting import Source, check_source
from slurmtrain.errors import CheckpointError, ConfigError
from slurmtrain.parallel.parameters import LocalParameter
from slurmtrain.runtime.seeds import rng_state
from slurmtrain.store import plain
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


class Holdings:
    """What a rank saves, as one source for all saves; made anew only where a tensor lies elsewhere than before. `place`: of the rank."""

    def __init__(self, place: str, parameters: Sequence[LocalParameter], optimizer: Optimizer, average: Average | None) -> None:
        self._place, self._parameters, self._optimizer, self._average = place, parameters, optimizer, average
        self._generators: dict[str, Tensor] = {}
        self._made: tuple[list[int], TensorSource] | None = None

    def source(self) -> TensorSource:
        """Of the values of now."""
        now = rng_state()
        if now.keys() != self._generators.keys():
            self._generators, self._made = now, None
        for kind, state in now.items():
            self._generators[kind].copy_(state)
        where = self._where()
        if self._made is None or self._made[0] != where:
            entries = owned(self._parameters, self._optimizer, self._average)
            self._made = where, TensorSource([*entries, *rng_entries(self._place, self._generators)])
        return self._made[1]

    def _where(self) -> list[int]:
        """The addresses of all tensors."""
        states = [one for kept in self._optimizer.states().values() for one in kept if one is not None]
        averages = self._average.values if self._average is not None else []
        return [one.data_ptr() for one in (*(p.tensor for p in self._parameters), *states, *averages)]


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
        progress = Progress(manifest.step, manifest.tokens, plain.number(state["position"]), plain.seconds(state.get("seconds", 0.0)))
        updates = plain.number(state["optimizer_updates"])
        before = {
            "seed": plain.number(state["seed"]),
            "sequence_length": plain.number(state["sequence_length"]),
            "data": plain.text(state["data"]),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint of step {manifest.step} lacks the trainer's state: {error!r}") from error
    check_source(before, source, manifest.step)
    return progress, updates
