"""Types of single values that several models share, each with its rule and the words for whoever breaks it."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator

from slurmtrain.config.base import FORMAT_VERSION
from slurmtrain.config.sbatch_options import extra_fault
from slurmtrain.rundir import valid_run_name
from slurmtrain.units import parse_duration

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SLURMS_OWN = ("SLURM_", "SBATCH_", "SRUN_")
_JOB_ID = re.compile(r"\d+(_\d+)?")
_ARRAY = re.compile(r"(\d+)-(\d+)(?:%(\d+))?")
_ULIMIT_FLAGS = frozenset("bcdefiklmnpqrstuvxPRT")


class RuleError(ValueError):
    """A rule broken by one item of a value: `item` is its key or index, `value` what it holds."""

    def __init__(self, problem: str, *, item: str | int | None = None, value: object = None) -> None:
        super().__init__(problem)
        self.item, self.value = item, value


def _line(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty: give a value, or leave the key out")
    if any(ch in text for ch in "\0\n\r"):
        raise ValueError("must be one line")
    return text


def _word(text: str) -> str:
    if any(ch.isspace() for ch in _line(text)):
        raise ValueError("must be one word, without blanks")
    return text


def _run_name(name: str) -> str:
    if not valid_run_name(name):
        raise ValueError("use letters, digits, dot, dash and underscore, at most 128, beginning with a letter or digit")
    if _JOB_ID.fullmatch(name):
        raise ValueError(f'looks like a job id, and a job id works wherever a run\'s name does: begin with a letter, such as "run{name}"')
    return name


def _number_to_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _duration(text: str) -> str:
    parse_duration(text)
    return text


def _array(text: str) -> str:
    form = _ARRAY.fullmatch(text)
    if not form:
        raise ValueError('is not an array of segments: write "1-4%1", first and last segment')
    first, last, at_once = int(form[1]), int(form[2]), form[3]
    if last < first:
        raise ValueError(f'ends before it begins: write "{last}-{first}%1"')
    if at_once is None or int(at_once) != 1:
        raise ValueError(f'segments of one run go one at a time: write "{first}-{last}%1"')
    return text


def _numbers_to_text(table: Any) -> Any:
    return {key: _number_to_text(value) for key, value in table.items()} if isinstance(table, dict) else table


def _spares(value: Any) -> Any:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise ValueError('must be a whole number, 0 or more, or "auto"')


def _environment(table: dict[str, str]) -> dict[str, str]:
    for name, value in table.items():
        if not _VARIABLE.fullmatch(name):
            raise RuleError("is not a variable's name: letters, digits and underscore, no digit first", item=name)
        if name.startswith(_SLURMS_OWN) and name != "SLURM_CONF":
            raise RuleError("is Slurm's own variable: use the keys of [slurm], here or in the site file", item=name, value=value)
        if "\0" in value:
            raise RuleError("holds a NUL byte, which no environment can carry", item=name)
    return table


def _extra(options: tuple[str, ...]) -> tuple[str, ...]:
    for index, option in enumerate(options):
        fault = extra_fault(option)
        if fault:
            raise RuleError(fault, item=index, value=option)
    return options


def _ulimits(table: dict[str, str]) -> dict[str, str]:
    for flag, value in table.items():
        if flag not in _ULIMIT_FLAGS:
            raise RuleError('is not a flag of bash\'s ulimit: one letter, such as l = "unlimited" (locked memory)', item=flag)
        if not re.fullmatch(r"unlimited|\d+", value):
            raise RuleError('must be a number or "unlimited"', item=flag, value=value)
    return table


def _array_to_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _version(number: int) -> int:
    if not 1 <= number <= FORMAT_VERSION:
        raise ValueError(f"is a format of another release: this one reads 1 to {FORMAT_VERSION}")
    return number


Line = Annotated[str, AfterValidator(_line)]
"""Not empty, one line."""
Lines = Annotated[tuple[Line, ...], BeforeValidator(_array_to_tuple)]
"""In a section that is looked at before its values are: there a JSON array is a list, which strict tuples refuse."""
Word = Annotated[str, AfterValidator(_word)]
"""Not empty, no blanks."""
RunName = Annotated[str, AfterValidator(_run_name)]
Duration = Annotated[str, BeforeValidator(_number_to_text), AfterValidator(_duration)]
"""A time limit as `units.parse_duration` reads it; a bare number is minutes, as for sbatch."""
Spares = Annotated[int | Literal["auto"], PlainValidator(_spares)]
"""A number of nodes, or the number that `planner.spares` chooses at submit."""
ArrayRange = Annotated[str, AfterValidator(_array)]
Environment = Annotated[dict[str, str], BeforeValidator(_numbers_to_text), AfterValidator(_environment)]
"""Variables: whole numbers become text, values may hold anything but NUL."""
SbatchExtra = Annotated[tuple[str, ...], AfterValidator(_extra)]
"""More sbatch options, one word each, none that slurmtrain sets itself."""
Ulimits = Annotated[dict[str, str], BeforeValidator(_numbers_to_text), AfterValidator(_ulimits)]
Version = Annotated[int, AfterValidator(_version), Field(strict=True)]
