"""Figures of one run of the benchmark: rows, what they are held against, and how they are printed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

OURS = "ours"


@dataclass(frozen=True)
class Goal:
    """A row of the table: what is measured, against what, and the ratio to reach. `writes`: the disk's own noise is in it."""

    name: str
    against: str
    ratio: float | None
    writes: bool = False


@dataclass(frozen=True)
class Row:
    """One contender of a row. `ratio`: higher is better, the median over the repeats; `spread`: between the quartiles of the ratios.

    `value`: the median of what was measured, in `unit`; `state`: met, within noise, missed, or "" where there is no goal.
    """

    name: str
    contender: str
    ratio: float
    goal: float | None
    spread: float
    state: str
    value: float
    unit: str
    repeats: int
    against: str

    def as_json(self) -> dict[str, Any]:
        raw = asdict(self)
        name = self.name if self.contender == OURS else f"{self.name}: {self.contender}"
        return {**raw, "name": name, "row": self.name}


def rows_of(goal: Goal, base: Sequence[float], found: Mapping[str, Sequence[float]], unit: str = "s") -> list[Row]:
    """Ratios of a base to each contender, repeat by repeat: what the machine did besides in a repeat fell on both."""
    rows = []
    for contender, values in found.items():
        ratios = [b / v for b, v in zip(base, values, strict=True)]
        ratio = statistics.median(ratios)
        low, high = np.percentile(ratios, [25, 75])
        wanted = goal.ratio if contender == OURS else None
        spread = float(high - low)
        state = verdict(ratio, wanted, spread, writes=goal.writes)
        rows.append(Row(goal.name, contender, ratio, wanted, spread, state, statistics.median(values), unit, len(values), goal.against))
    return rows


def verdict(ratio: float, goal: float | None, spread: float, *, writes: bool) -> str:
    """Writes that miss their goal by less than the spread are within noise.

    >>> verdict(0.96, 0.95, 0.1, writes=True), verdict(0.9, 0.95, 0.1, writes=True), verdict(0.9, 0.95, 0.1, writes=False)
    ('met', 'within noise', 'missed')
    """
    if goal is None:
        return ""
    if ratio >= goal:
        return "met"
    return "within noise" if writes and goal - ratio < spread else "missed"


HEAD = f"{'row':<43} {'contender':<20} {'ratio':>7} {'spread':>7} {'goal':>5}  {'':<13} {'median':>11}  against"


def line_of(row: Row) -> str:
    goal = "" if row.goal is None else f"{row.goal:.2f}"
    value = f"{row.value * 1e3:8.1f} ms" if row.unit == "s" else f"{row.value / 1e6:8.1f} MB"
    return f"{row.name:<43} {row.contender:<20} {row.ratio:7.2f} {row.spread:7.2f} {goal:>5}  {row.state:<13} {value:>11}  {row.against}"
