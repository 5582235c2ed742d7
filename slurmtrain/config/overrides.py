"""What the command line says over the job file: `--set key=value`, and options by dotted key."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from datetime import date, time
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from slurmtrain.config.draft import OPTION, SET, Draft
from slurmtrain.config.faults import config_error
from slurmtrain.config.keys import holds, near_misses, unknown
from slurmtrain.errors import ConfigError

APPENDED = frozenset({"slurm.extra", "run.include"})
"""Keys whose options add to what the file says."""


def apply_sets(draft: Draft, model: type[BaseModel], sets: Sequence[str]) -> None:
    """Say each `key=value` of --set, in order. Raises ConfigError."""
    for text in sets:
        key, equals, raw = text.partition("=")
        key = key.strip()
        where = f"--set {key}"
        if not equals or not key:
            raise ConfigError("write --set key=value, such as --set training.steps=500", where=f"--set {text}")
        _check_key(model, key, "--set")
        draft.put(key, _literal(raw.strip(), holds(model, key)), SET, where)


def apply_options(draft: Draft, model: type[BaseModel], options: Mapping[str, Any]) -> None:
    """Say each option that was given (None: it was not). Raises ConfigError."""
    for key, value in options.items():
        if value is None:
            continue
        _check_key(model, key, "command line")
        before = draft.get(key)
        if key in APPENDED and isinstance(before, list):
            value = [*before, *value]  # noqa: PLW2901
        draft.put(key, value, OPTION, "command line")


def _check_key(model: type[BaseModel], key: str, where: str) -> None:
    if holds(model, key) is None:
        raise config_error(unknown(key, model, near_misses(key, model)), where=where, key=key, said=False)


def _literal(raw: str, annotation: Any) -> Any:
    """The value of a text: as TOML reads it, else the text; a key that holds text takes it as it is.

    >>> _literal("1e-3", float), _literal("01:00:00", str | None), _literal("fsdp", object)
    (0.001, '01:00:00', 'fsdp')
    """
    try:
        read = tomllib.loads(f"value = {raw}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return raw
    value = read["value"]
    if len(read) > 1 or isinstance(value, date | time):
        return raw
    return raw if _is_text(annotation) and not isinstance(value, str) else value


def _is_text(annotation: Any) -> bool:
    """Whether a key holds text or a path, perhaps None too, perhaps with a rule of ours."""
    if get_origin(annotation) in {Union, UnionType, Annotated}:
        return any(_is_text(inner) for inner in get_args(annotation))
    return annotation in (str, Path)
