"""pydantic's errors, told as slurmtrain tells them: one line with file, dotted key, value, what is allowed, and near misses.

Of several faults the line tells the first, and how many more there are: unknown keys come first (a misspelt key also looks
like a missing one, which is then not counted), missing keys second and together, wrong values last.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from slurmtrain.config.keys import meant, near_misses, near_words, section_at, unknown
from slurmtrain.config.values import RuleError
from slurmtrain.errors import ConfigError, one_line

_UNKNOWN, _MISSING, _VALUE = range(3)

_WORDS = {
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text, in quotes",
    "tuple_type": 'must be an array: ["...", "..."]',
    "finite_number": "must be a finite number",
    "json_invalid": "holds characters that are not UTF-8 text",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


@dataclass(frozen=True)
class Fault:
    """One problem of a file: the key is dotted, the value as it stands there (None: not shown)."""

    rank: int
    key: str
    problem: str
    value: Any = None
    near: tuple[str, ...] = ()


def worst(model: type[BaseModel], errors: Sequence[Any], where: Callable[[str], str]) -> ConfigError:
    """The error that tells the first of the faults; `where` names who said a key."""
    faults = sorted((_fault(model, error) for error in errors), key=lambda fault: fault.rank)
    excused = {near for fault in faults for near in fault.near}
    faults = [fault for fault in faults if fault.rank != _MISSING or not _excused(fault.key, excused)]
    faults = [fault for fault in faults if not _follows(fault)] or faults
    missing = [fault for fault in faults if fault.rank == _MISSING]
    first, rest = faults[0], len(faults) - 1
    if first.rank == _MISSING:
        rest -= len(missing) - 1
        return config_error(_missing(model, [fault.key for fault in missing]), where=where(first.key), key=first.key, said=False, more=rest)
    return config_error(first.problem, where=where(first.key), key=first.key, value=first.value, said=first.rank != _UNKNOWN, more=rest)


def config_error(problem: str, *, where: str, key: str, value: Any = None, said: bool = True, more: int = 0) -> ConfigError:
    """A ConfigError that fits one line; `said=False` when the problem names the key itself; `more` counts further faults."""
    tail = f" (and {more} more)" if more else ""
    text = one_line(problem, 400) + tail
    error = ConfigError(text, where=one_line(where), key=one_line(key) if said else "", value=_short(value))
    error.key = key
    return error


def _short(value: Any) -> Any:
    """The value, cut where its repr would fill the line."""
    if isinstance(value, Mapping):
        return None
    return value if len(repr(value)) <= 80 else f"{str(value)[:60]}..."


def _excused(key: str, near: Iterable[str]) -> bool:
    return any(key == n or n.startswith(f"{key}.") or key.startswith(f"{n}.") for n in near)


def _follows(fault: Fault) -> bool:
    """head_dim is worked out of hidden and heads: where these are wrong its own fault is noise."""
    return fault.key == "model.head_dim" and fault.value == 0


def _missing(model: type[BaseModel], keys: Sequence[str]) -> str:
    sections = [(key, section_at(model, key)) for key in keys]
    tables = [f"[{key}] with {', '.join(_required(section))}" for key, section in sections if section]
    plain = [key for key, section in sections if not section]
    words = [f"missing {'keys' if len(plain) > 1 else 'key'}: {', '.join(plain)}"] if plain else []
    words += [f"missing {'tables' if len(tables) > 1 else 'table'}: {'; '.join(tables)}"] if tables else []
    return "; ".join(words)


def _required(section: type[BaseModel]) -> list[str]:
    needed = [name for name, field in section.model_fields.items() if field.is_required()]
    return needed or [next(iter(section.model_fields))]


def _dotted(loc: Sequence[str | int]) -> str:
    key = ""
    for part in loc:
        if isinstance(part, int):
            key += f"[{part}]"
        elif part != "[key]":
            key += f".{_plain_name(part)}" if key else _plain_name(part)
    return key


def _plain_name(name: str) -> str:
    return name if name.isprintable() and name.strip() else repr(name)


def _fault(model: type[BaseModel], error: Mapping[str, Any]) -> Fault:
    kind, loc, value = error["type"], error["loc"], error["input"]
    key, context = _dotted(loc), error.get("ctx", {})
    if kind == "extra_forbidden":
        near = near_misses(key, model)
        return Fault(_UNKNOWN, key, unknown(key, model, near), value, near)
    if kind == "missing" and isinstance(loc[-1], int):
        return Fault(_VALUE, _dotted(loc[:-1]), f"must have {loc[-1] + 1} values or more", value)
    if kind == "missing":
        return Fault(_MISSING, key, "missing")
    if kind == "value_error":
        return _own_rule(key, context["error"], value)
    return Fault(_VALUE, key, _words(kind, key, context, value, error["msg"]), value)


def _own_rule(key: str, error: Exception, value: Any) -> Fault:
    if isinstance(error, RuleError) and error.item is not None:
        item = f"[{error.item}]" if isinstance(error.item, int) else f".{_plain_name(error.item)}"
        return Fault(_VALUE, key + item, str(error), error.value)
    return Fault(_VALUE, key, str(error), value)


def _words(kind: str, key: str, context: Mapping[str, Any], value: Any, message: str) -> str:
    if kind in {"model_type", "dict_type", "model_attributes_type"}:
        return f"must be a table: [{key}]"
    if kind in _BOUNDS:
        word, bound = _BOUNDS[kind]
        return f"must be {word} {context[bound]:g}"
    if kind == "literal_error":
        allowed = _allowed(context["expected"])
        near = near_words(value, allowed) if isinstance(value, str) else ()
        return f"must be {' or '.join(repr(word) for word in allowed)}{meant(near) if len(allowed) > 2 else ''}"
    if kind == "too_long":
        return f"must have {context['max_length']} values, not {context['actual_length']}"
    hint = ", without quotes" if isinstance(value, str) and kind in {"int_type", "float_type", "bool_type"} else ""
    if isinstance(value, float) and value.is_integer() and kind in {"int_type", "int_from_float"}:
        hint = f": write {value:.0f}, without point or exponent"
    return _WORDS.get(kind, message[:1].lower() + message[1:]) + hint


def _allowed(expected: str) -> list[str]:
    """The words of pydantic's `'a', 'b' or 'c'`."""
    return [ast.literal_eval(word) for word in expected.replace(" or ", ", ").split(", ")]
