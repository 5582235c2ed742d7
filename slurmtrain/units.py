"""Units that people write and read: durations as Slurm writes them, sizes, short numbers.

>>> parse_duration("1-02:03:04"), parse_duration("90"), parse_duration("2:30"), parse_duration("45s")
(93784, 5400, 150, 45)
>>> format_duration(93784), parse_size("4GiB"), format_size(4 << 30)
('1-02:03:04', 4294967296, '4.0 GiB')
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

_STEP_DIGITS = 18
"""64 bits hold any such number: heartbeats do."""
_NEVER = 1e11
"""The year 5138."""
_SUFFIX_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZE = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}


def parse_duration(text: str | int) -> int:
    """Seconds of a time limit in sbatch's forms (minutes, m:s, h:m:s, d-h, d-h:m, d-h:m:s) or with a unit (45s 30m 8h 2d).

    Raises ValueError with the forms that are allowed.
    """
    raw = str(text).strip()
    unit = re.fullmatch(r"(\d+)\s*([smhd])", raw)
    if unit:
        return int(unit[1]) * _SUFFIX_S[unit[2]]
    form = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", raw)
    if not form:
        raise ValueError(f"{raw!r} is not a time: write minutes, H:MM:SS, D-HH:MM:SS, or 45s, 30m, 8h, 2d")
    days, *parts = form.groups()
    nums = [int(p) for p in parts if p is not None]
    if days is not None:
        hours, minutes, seconds = (*nums, 0, 0)[:3]
        return int(days) * 86400 + hours * 3600 + minutes * 60 + seconds
    if len(nums) == 1:
        return nums[0] * 60
    if len(nums) == 2:
        return nums[0] * 60 + nums[1]
    return nums[0] * 3600 + nums[1] * 60 + nums[2]


def parse_step(text: str) -> int | None:
    """A step's number as a script, or a file's name, tells it; None for what is no number, or none that a run could reach.

    >>> parse_step(" 400 "), parse_step("-5"), parse_step("9" * 19)
    (400, None, None)
    """
    digits = text.strip()
    return int(digits) if digits.isdecimal() and len(digits) <= _STEP_DIGITS else None


def moment(seconds: Any) -> float:
    """A time since the epoch out of a file that others write, too. Raises ValueError for one that no calendar has.

    >>> moment("1796000000.5"), moment(0)
    (1796000000.5, 0.0)
    """
    t = float(seconds)
    if not 0 <= t < _NEVER:
        raise ValueError(f"{t} is no time")
    return t


def format_duration(seconds: float) -> str:
    """Slurm's D-HH:MM:SS, without the days where there are none; less than nothing is nothing."""
    total = max(0, int(seconds))
    days, rest = divmod(total, 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def parse_size(text: str | int) -> int:
    """Bytes of `512`, `80GB`, `16MiB`, `2T`. Raises ValueError."""
    form = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", str(text).lower())
    if not form:
        raise ValueError(f"{text!r} is not a size: write bytes, or 80GB, 16MiB, 2TB")
    return int(Fraction(form[1]) * _SIZE[form[2] or ""])


def format_size(count: float) -> str:
    """Bytes in binary units with one decimal."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def counted(count: int, noun: str) -> str:
    """A number and its noun in the right form.

    >>> counted(1, "node"), counted(2, "node")
    ('1 node', '2 nodes')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_count(count: float) -> str:
    """1234 as 1.23k, 7.1e9 as 7.10B: three significant figures, whole numbers below 1000 as they are.

    >>> format_count(1234), format_count(950), format_count(8.03e9), format_count(999_999)
    ('1.23k', '950', '8.03B', '1.00M')
    """
    value, suffixes = float(count), ["", "k", "M", "B", "T"]
    while abs(value) >= 999.5 and len(suffixes) > 1:
        value /= 1000
        suffixes.pop(0)
    if not suffixes[0]:
        return f"{value:.3g}"
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{decimals}f}{suffixes[0]}"
