"""Values out of a manifest's JSON that are what they should be, and are then safe to count with, to allocate by, and to show people.

Each function gives its value back, and raises ValueError or TypeError where it is of another form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from slurmtrain.errors import one_line

HIGHEST = (1 << 63) - 1
YEAR_9999 = 253_370_764_800
LONGEST_NAME = 1000
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_TYPE_NAME = re.compile(r"[A-Za-z0-9_]{1,40}")


def number(value: Any, least: int = 0, most: int = HIGHEST) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{_shown(value)} is not a whole number from {least} to {most}")
    return value


def seconds(value: Any) -> float:
    if type(value) not in {int, float} or not 0 <= value < YEAR_9999:
        raise ValueError(f"{_shown(value)} is not a time")
    return float(value)


def numbers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise TypeError(f"{_shown(values)} is not a list of numbers")
    found = tuple(values)
    for value in found:
        if type(value) is not int or not 0 <= value <= HIGHEST:
            raise ValueError(f"{_shown(value)} is not a whole number from 0 to {HIGHEST}")
    return found


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{_shown(value)} is not text")
    return value


def type_name(value: Any) -> str:
    if not _TYPE_NAME.fullmatch(text(value)):
        raise ValueError(f"{_shown(value)} is not the name of a type")
    return str(value)


def name(value: Any) -> str:
    """Of a tensor or dataset: it stands in lines that people read."""
    if not 0 < len(text(value)) <= LONGEST_NAME or not value.isprintable():
        raise ValueError(f"{_shown(value)} is not a name")
    return str(value)


def names(values: Iterable[str]) -> None:
    for value in values:
        name(value)


def file_name(value: Any, taken: str) -> str:
    """Of a file in a folder that holds one named `taken`."""
    if not _FILE_NAME.fullmatch(text(value)) or value == taken:
        raise ValueError(f"{_shown(value)} is not the name of a file beside the manifest")
    return str(value)


def _shown(value: Any) -> str:
    return one_line(repr(value), 80)
