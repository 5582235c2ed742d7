"""What was said before it is validated: plain values by dotted key, each with who said it (file, --set, option, policy)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, time
from typing import Any, TypeVar

from pydantic import ValidationError

from slurmtrain.config.base import Frozen
from slurmtrain.config.faults import worst
from slurmtrain.errors import ConfigError

M = TypeVar("M", bound=Frozen)

FILE, SET, OPTION, POLICY = range(4)
"""Ranks of speakers: a higher one wins."""


@dataclass
class Draft:
    """Values on their way to a model. `file`: the name of the file in errors."""

    values: dict[str, Any]
    file: str
    said: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Dotted key to (rank, name in errors) of who said it, where that is not the file."""

    def get(self, key: str) -> Any | None:
        """The value of a dotted key; None where nobody said one."""
        found: Any = self.values
        for name in key.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def put(self, key: str, value: Any, rank: int, where: str) -> None:
        """Say a value. Raises ConfigError when a part of the key holds something that is no table."""
        *tables, last = key.split(".")
        inner, path = self.values, ""
        for name in tables:
            path = f"{path}.{name}" if path else name
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"must be a table: [{path}]", where=self.where(path), key=path, value=inner)
        inner[last] = value
        self.said[key] = (rank, where)

    def speaker(self, key: str) -> tuple[int, str]:
        """Rank and name of who said a key: the longest beginning of it that somebody said, else the file."""
        names = key.partition("[")[0].split(".")
        for end in range(len(names), 0, -1):
            if found := self.said.get(".".join(names[:end])):
                return found
        return FILE, self.file

    def where(self, key: str) -> str:
        return self.speaker(key)[1]

    def build(self, model: type[M]) -> M:
        """The model of these values, strictly: no text for a number, no 1 for true. Raises ConfigError with the first fault."""
        for key, value in _leaves(self.values):
            if isinstance(value, date | time):
                raise ConfigError("dates and times are written in quotes", where=self.where(key), key=key, value=str(value))
        faults: list[Any] = [{"type": "missing", "loc": (key,), "input": None} for key in model.lacking(self.values)]
        try:
            built = model.model_validate_json(json.dumps(self.values, default=str), strict=True)
        except ValidationError as error:
            faults += error.errors(include_url=False)
        if faults:
            order = list(model.model_fields)
            raise worst(model, sorted(faults, key=lambda one: _place(one["loc"], order)), self.where)
        return built


def _place(loc: tuple[Any, ...], order: list[str]) -> int:
    return order.index(loc[0]) if loc and loc[0] in order else len(order)


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """All values below, with their keys; items of arrays under the array's key."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner, key)
    else:
        yield key, value
