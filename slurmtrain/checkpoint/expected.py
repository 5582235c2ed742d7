"""Which tensors a checkpoint of a job holds, by its configuration or by another checkpoint; and what of a set of tensors does not fit."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slurmtrain.checkpoint.making import Kinds, kinds_of
from slurmtrain.config.job import JobConfig
from slurmtrain.config.training import OptimizerConfig
from slurmtrain.models.names import EMBEDDING, HEAD, POSITIONS, global_shapes
from slurmtrain.store.manifest import Manifest

GROUPS = ("model", "optimizer", "ema")
"""Of the names that a configuration decides; `rng/` is of the layout."""
_TABLES = (EMBEDDING, POSITIONS, HEAD)


@dataclass(frozen=True)
class Expected:
    """The tensors of `model/`, `optimizer/` and `ema/`, and who says so, in words."""

    kinds: Kinds
    where: str

    def of(self, groups: Iterable[str]) -> Kinds:
        """Those of some groups."""
        return {name: kind for name, kind in self.kinds.items() if name.partition("/")[0] in groups}


def of_job(job: JobConfig, where: str) -> Expected:
    """What a checkpoint of this job holds; values and states are kept in fp32 whatever the training's type."""
    shapes = global_shapes(job.model)
    kinds = {f"model/{name}": (shape, "float32") for name, shape in shapes.items()}
    for name, shape in shapes.items():
        kinds |= {f"optimizer/{name}/{kind}": (one, "float32") for kind, one in _states(name, shape, job.optimizer)}
    if job.training.ema_decay is not None:
        kinds |= {f"ema/{name}": (shape, "float32") for name, shape in shapes.items()}
    return Expected(kinds, where)


def of_checkpoint(manifest: Manifest, where: str) -> Expected:
    """What another checkpoint holds."""
    return Expected({name: kind for name, kind in kinds_of(manifest).items() if name.partition("/")[0] in GROUPS}, where)


def _states(name: str, shape: tuple[int, ...], config: OptimizerConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Kinds and shapes of the optimiser's state of a tensor."""
    matrix = len(shape) == 2
    if config.name == "sgd" or (config.name == "muon" and matrix and name not in _TABLES):
        if config.name == "muon" or config.momentum:
            yield "momentum", shape
    elif config.name == "adafactor" and matrix:
        yield "row_var", (shape[0], 1)
        yield "col_var", (1, shape[1])
    elif config.name == "adafactor":
        yield "variance", shape
    else:
        yield "exp_avg", shape
        yield "exp_avg_sq", shape


def misfits(found: Kinds, wanted: Kinds, *, has: str, wants: str) -> str | None:
    """What of the tensors found is not as wanted, in words, the first of each fault by name; None where all is. `has`, `wants`: who."""
    missing = [name for name in wanted if name not in found]
    extra = [name for name in found if name not in wanted]
    if missing:
        near = difflib.get_close_matches(missing[0], extra, n=1) or extra[:1]
        other = f"; it has {near[0]}, which is none of {wants}'s" if near else ""
        return f"{has} has no {missing[0]}{_more(missing)}, which {wants} has{other}"
    if extra:
        return f"{has} has {extra[0]}{_more(extra)}, which {wants} has not"
    for what, which in (("shape", 0), ("elements of type", 1)):
        wrong = [name for name in wanted if found[name][which] != wanted[name][which]]
        if wrong:
            name = wrong[0]
            return f"{has}: {name}{_more(wrong)} has {what} {found[name][which]}, {wanted[name][which]} in {wants}"
    return None


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
