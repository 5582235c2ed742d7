"""How a check refuses: the key, its value, why, and the values that would do."""

from __future__ import annotations

from typing import Any, NoReturn

from slurmtrain.config.job import JobConfig
from slurmtrain.errors import ConfigError


def refuse(job: JobConfig, key: str, value: Any, problem: str) -> NoReturn:
    raise ConfigError(problem, where=f"job {job.run.name}", key=key, value=value)


def divisors(number: int, most: int = 8) -> str:
    """The divisors in words; only the first few of many.

    >>> divisors(8), divisors(1)
    ('1, 2, 4 or 8', '1')
    """
    return either([n for n in range(1, min(number, 4096) + 1) if number % n == 0][:most])


def multiples(unit: int, *, near: int) -> str:
    """The multiples of `unit` around a number, in words.

    >>> multiples(8, near=12), multiples(8, near=3)
    ('8 or 16', '8')
    """
    below = near // unit * unit
    return either([n for n in (below, below + unit) if n > 0])


def either(values: list[Any]) -> str:
    """Values in words.

    >>> either([1, 2, 4])
    '1, 2 or 4'
    """
    words = [str(value) for value in values]
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
