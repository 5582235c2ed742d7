"""What a check says, and how bad it is.

| grade | means | the node |
|---|---|---|
| ok | looked at, and as it should be | may take part |
| warn | worth a look, and no reason to stay out | may take part |
| fail | not fit | stays out |
| unknown | could not be looked at | stays out: a check fails closed |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Grade = Literal["ok", "warn", "fail", "unknown"]
GRADES: tuple[Grade, ...] = ("ok", "warn", "fail", "unknown")
OUT: frozenset[Grade] = frozenset({"fail", "unknown"})
"""Grades that keep a node out."""


@dataclass(frozen=True)
class Trouble:
    """`said`: what was seen, with figures; `remedy`: what to do; `item`: the part of the node ("GPU 3", "mlx5_0"), empty: all of it."""

    grade: Grade
    said: str
    remedy: str
    item: str = ""

    def __str__(self) -> str:
        what = f"{self.item}: {self.said}" if self.item else self.said
        return f"{what}: {self.remedy}" if self.remedy else what


@dataclass(frozen=True)
class Finding:
    """A check's trouble with a node. `peer`: the other node, where it is a pair's."""

    node: str
    check: str
    grade: Grade
    said: str
    remedy: str = ""
    item: str = ""
    peer: str = ""

    def __str__(self) -> str:
        """One line for people, without the node: "gpu-ecc: GPU 3: 2 uncorrectable errors: have it replaced"."""
        return f"{self.check}: {Trouble(self.grade, self.said, self.remedy, self.item)}"

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value != ""}

    @classmethod
    def of(cls, node: str, check: str, trouble: Trouble) -> Finding:
        return cls(node, check, trouble.grade, trouble.said, trouble.remedy, trouble.item)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Finding:
        """Raises ValueError, TypeError, KeyError for what is none."""
        if raw["grade"] not in GRADES:
            raise ValueError(f"no grade: {raw['grade']!r}")
        return cls(**{name: raw[name] for name in cls.__dataclass_fields__ if name in raw})


def tolerated(one: Finding, names: Collection[str]) -> Finding:
    """A warning in the place of what keeps a node out, where the site tolerates the check (preflight.tolerate)."""
    return replace(one, grade="warn") if one.grade in OUT and one.check in names else one


def worst(grades: Iterable[Grade]) -> Grade:
    """The worst of them; ok where there are none. What could not be looked at is worse than what is known to be bad.

    >>> worst(["ok", "fail", "warn"]), worst([])
    ('fail', 'ok')
    """
    return max(grades, key=GRADES.index, default="ok")
