"""Dotted keys of a model ("parallel.tp"): which there are, what they hold, and which one a misspelt key means."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel

SYNONYMS = {
    "learning_rate": "optimizer.lr",
    "min_learning_rate": "optimizer.min_lr",
    "beta1": "optimizer.betas",
    "beta2": "optimizer.betas",
    "warmup": "optimizer.warmup_steps",
    "batch_size": "training.global_batch",
    "global_batch_size": "training.global_batch",
    "micro_batch_size": "training.micro_batch",
    "seq_len": "training.sequence_length",
    "seq_length": "training.sequence_length",
    "max_steps": "training.steps",
    "lr_decay_iters": "optimizer.total_steps",
    "precision": "training.dtype",
    "mixed_precision": "training.dtype",
    "activation_checkpointing": "training.recompute",
    "gradient_checkpointing": "training.recompute",
    "virtual_stages": "parallel.vp",
    "pipeline_schedule": "parallel.schedule",
    "zero_stage": "parallel.dp_mode",
    "fsdp": "parallel.dp_mode",
    "rope_base": "model.rope_theta",
    "eval_interval": "evaluation.every_steps",
    "train_iters": "training.steps",
    "grad_clip": "training.clip_norm",
    "num_layers": "model.layers",
    "n_layers": "model.layers",
    "dim": "model.hidden",
    "hidden_size": "model.hidden",
    "n_heads": "model.heads",
    "num_attention_heads": "model.heads",
    "n_kv_heads": "model.kv_heads",
    "num_query_groups": "model.kv_heads",
    "num_key_value_heads": "model.kv_heads",
    "intermediate_size": "model.ffn",
    "vocab_size": "model.vocab",
    "tensor_parallel": "parallel.tp",
    "tensor_model_parallel_size": "parallel.tp",
    "pipeline_parallel": "parallel.pp",
    "pipeline_model_parallel_size": "parallel.pp",
    "data_parallel": "parallel.dp",
    "context_parallel": "parallel.cp",
    "expert_parallel": "parallel.ep",
    "save_interval": "checkpoint.every_steps",
    "job_name": "run.name",
    "num_nodes": "slurm.nodes",
    "walltime": "slurm.time",
    "env": "environment",
}
"""Names that other trainers have for our keys."""


def _section(annotation: Any) -> type[BaseModel] | None:
    """The model that a field holds, also where it may be left out (`Model | None`)."""
    found = [one for one in (annotation, *get_args(annotation)) if isinstance(one, type) and issubclass(one, BaseModel)]
    return found[0] if found and get_origin(annotation) is not tuple else None


def walk(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every dotted key of a model, sections before what is in them; the format version `v` is not for people."""
    for name, field in model.model_fields.items():
        if name == "v":
            continue
        yield f"{prefix}{name}"
        inner = _section(field.annotation)
        if inner:
            yield from walk(inner, f"{prefix}{name}.")


def section_at(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    """The section that a dotted key names; None for a value, or where there is no such key."""
    found: type[BaseModel] | None = model
    for name in key.split("."):
        field = found.model_fields.get(name) if found else None
        found = _section(field.annotation) if field else None
    return found


def holds(model: type[BaseModel], key: str) -> Any | None:
    """The annotation of a dotted key (`int`, `str | None`, a section, ...); None where there is no such key.

    A key inside a table of free names (`environment.NCCL_DEBUG`, `evaluation.sets.held`) holds what the table does.
    """
    parent, _, name = key.rpartition(".")
    section = section_at(model, parent) if parent else model
    if section:
        field = section.model_fields.get(name)
        return field.annotation if field else None
    table = holds(model, parent) if parent else None
    return get_args(table)[1] if get_origin(table) is dict and name else None


def near_misses(key: str, model: type[BaseModel]) -> tuple[str, ...]:
    """Keys of the model that a wrong key may mean, the likeliest first, at most three.

    >>> from slurmtrain.config.job import JobConfig
    >>> near_misses("trainning", JobConfig), near_misses("training.lr", JobConfig), near_misses("model.num_layers", JobConfig)
    (('training',), ('optimizer.lr',), ('model.layers',))
    """
    parent, _, name = key.lower().replace("-", "_").rpartition(".")
    every = list(walk(model))
    siblings = {k.rpartition(".")[2]: k for k in every if k.rpartition(".")[0] == parent}
    found = [siblings[near] for near in difflib.get_close_matches(name, siblings, n=2, cutoff=0.7)]
    found += [k for k in every if k.rpartition(".")[2] == name]
    if SYNONYMS.get(name) in every:
        found.insert(0, SYNONYMS[name])
    found += difflib.get_close_matches(key, every, n=1, cutoff=0.85)
    return tuple(dict.fromkeys(found))[:3]


def unknown(key: str, model: type[BaseModel], near: tuple[str, ...]) -> str:
    """What to say of a key that is not there: the likely ones, else all that its table has.

    >>> from slurmtrain.config.job import JobConfig
    >>> unknown("run.stepz", JobConfig, ())
    "unknown key 'run.stepz'; [run] has name, include, live"
    """
    if near:
        return f"unknown key '{key}'{meant(near)}"
    parent = key.rpartition(".")[0]
    section = section_at(model, parent) if parent else model
    names = ", ".join(name for name in section.model_fields if name != "v") if section else ""
    return f"unknown key '{key}'" + (f"; {f'[{parent}]' if parent else 'the file'} has {names}" if names else "")


def near_words(word: str, allowed: list[str]) -> tuple[str, ...]:
    """Words that a wrong one may mean, at most three."""
    return tuple(difflib.get_close_matches(word, allowed, n=3, cutoff=0.6))


def meant(near: tuple[str, ...]) -> str:
    """`; did you mean 'a' or 'b'?`, empty without near misses."""
    return f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
