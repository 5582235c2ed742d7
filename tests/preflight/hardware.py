"""Measured rates of machines: recorded/hardware.csv, which names the source of each row."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("recorded") / "hardware.csv"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class HardwareRow:
    component: str
    metric: str
    value: float
    conditions: str

    @property
    def payload(self) -> int:
        form = re.search(r"payload (\d+) ?([KMG]?)i?B", self.conditions) or re.search(r"(\d+)(G)iB", self.conditions)
        return int(form[1]) * _UNITS[form[2]] if form else 0

    @property
    def members(self) -> int:
        form = (
            re.search(r"(\d+) ranks", self.conditions)
            or re.match(r"(\d+)(?: of \d+)?x? ", self.component)
            or re.match(r"(\d+)x", self.component)
        )
        return int(form[1]) if form else 1

    @property
    def algorithm(self) -> str:
        """Ring and NVLS differ by a quarter on the same machine: not of one kind."""
        return "ring" if "ring" in self.conditions.lower() else "default"


def measured_rows() -> list[HardwareRow]:
    with open(TABLE, newline="") as file:
        rows = list(csv.DictReader(file))
    return [HardwareRow(row["component"], row["metric"], float(row["value"]), row["conditions"]) for row in rows]
