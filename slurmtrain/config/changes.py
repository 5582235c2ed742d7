"""What a run that goes on, or a branch of it, may say otherwise than before; everything else is refused by its name, with the reason.

>>> changes = differences({"optimizer": {"lr": 1e-3}, "model": {"heads": 4}}, {"optimizer": {"lr": 5e-4}, "model": {"heads": 8}})
>>> [str(one) for one in changes]
['optimizer.lr: 0.001 -> 0.0005', 'model.heads: 4 -> 8']
>>> check_changes(changes, durable_step=None)
Traceback (most recent call last):
slurmtrain.errors.ConfigError: model.heads = 8: the run was begun with 4, and its checkpoints depend on it: give the new model a name \
of its own (-J NAME)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slurmtrain.config.job import JobConfig
from slurmtrain.errors import ConfigError

MAY_CHANGE = frozenset(
    {
        *("run", "entry", "parallel", "checkpoint", "evaluation", "target", "metrics", "recovery", "slurm", "environment"),
        *("python", "preflight", "v"),
        *(f"model.{key}" for key in ("preset", "rope_theta", "rope_scaling", "window", "dropout", "attention_dropout")),
        *(f"data.{key}" for key in ("path", "sources", "loss_on", "stage", "stage_bytes", "prefetch")),
        *(f"training.{key}" for key in ("steps", "global_batch", "micro_batch", "batch_ramp", "clip_norm", "clip_norm_type")),
        *(f"training.{key}" for key in ("dtype", "reduce_dtype", "loss_scale", "matmul", "recompute", "recompute_every", "compile")),
        *(f"training.{key}" for key in ("loss_chunk_tokens", "z_loss", "ema_decay", "deterministic")),
        *(f"optimizer.{key}" for key in ("lr", "min_lr", "betas", "eps", "momentum", "weight_decay", "no_decay")),
        *(f"optimizer.{key}" for key in ("schedule", "warmup_steps", "total_steps", "decay_steps")),
    }
)
"""Keys, and sections with all that is in them. That data lie elsewhere is allowed, that they are others is not (`train.state`)."""
SHAPE = ("family", "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "tied_embeddings", "max_positions")
"""Of [model]: what a checkpoint's tensors are. For the life of a run."""
SAMPLES = ("training.seed", "training.sequence_length", "data.documents")
"""What a checkpoint's place in the data counts in: from the first checkpoint on."""
FIRST_VALUES = ("model.init_std", "model.weights", "model.weights_names", "model.weights_missing", "model.weights_surplus")
"""What a checkpoint outweighs."""
SECRET = frozenset({"environment"})
"""Sections that travel in no checkpoint and no event."""
UNSEEN = SECRET | {"v", "run", "slurm", "python", "preflight"}
"""Sections that no curve depends on."""


@dataclass(frozen=True)
class Change:
    """A dotted key whose value is another now."""

    key: str
    before: Any
    after: Any

    @property
    def section(self) -> str:
        return self.key.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.key}: {self.before} -> {self.after}"


def plain(job: JobConfig) -> dict[str, Any]:
    """The job as JSON values."""
    return job.model_dump(mode="json")


def stored(job: JobConfig) -> dict[str, Any]:
    """What a checkpoint keeps of its job: all but what may be secret."""
    return job.model_dump(mode="json", exclude=set(SECRET), exclude_none=True)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """What differs between two jobs as JSON values, key by key; a key that is not there is None."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    return [Change(key, old.get(key), new.get(key)) for key in {**old, **new} if old.get(key) != new.get(key)]


def check_changes(changes: Iterable[Change], *, durable_step: int | None) -> None:
    """Raise ConfigError for the first change that the run would not survive. `durable_step`: of the checkpoint that it goes on from."""
    for one in changes:
        if (problem := _problem(one, durable_step)) is not None:
            raise ConfigError(f"{problem} (-J NAME)", key=one.key, value=one.after)


def _problem(change: Change, step: int | None) -> str | None:
    section, _, key = change.key.partition(".")
    if section == "model" and key in SHAPE:
        return f"the run was begun with {change.before!r}, and its checkpoints depend on it: give the new model a name of its own"
    if step is None or allowed(change.key):
        return None
    if any(_within(change.key, one) for one in FIRST_VALUES):
        left_out = change.after in (None, [])
        return None if left_out else f"says first values, and the checkpoint of step {step} outweighs them: begin a new run"
    was = f"the checkpoint of step {step} was trained with {change.before!r}"
    if change.key == "optimizer.name":
        was = f"the state of {change.before} in the checkpoint of step {step} is of no use to it"
    if change.key in SAMPLES:
        was = f"{was}: its place in the data would mean other samples"
    return f"{was}: put it back, or begin a new run"


def allowed(key: str) -> bool:
    """Whether a run may change it whenever it goes on."""
    return any(_within(key, one) for one in MAY_CHANGE)


def _within(key: str, listed: str) -> bool:
    return key == listed or key.startswith(f"{listed}.")


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, value
