"""numerics.json: what was done about numbers that went wrong, in the life of a run. Rank 0 writes it, every start reads it.

    {"v":1,"skipped":3,"rollbacks":[{"step":412,"began":410,"to":400,"cause":"nonfinite","attempt":2,"t":1764444444.5,
                                     "lr_factor":0.5,"until":500,"left_out":[3200,3296]}]}

What a step is trained with is a function of this file and the job alone: the factor of its learning rate by its number, and which
samples are left out by their position. So a run that is started again goes on as it would have.

>>> book = Book().with_rollback(Rollback(step=12, began=12, to=10, cause="spike", lr_factor=0.5, until=14, left_out=(80, 96)))
>>> [book.lr_factor(step) for step in (10, 11, 14, 15)], [book.position(at) for at in (72, 80, 88)]
([1.0, 0.5, 0.5, 1.0], [72, 96, 88])
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from slurmtrain.atomic import to_json

INTERVENTIONS_VERSION = 1
FaultCause = Literal["nonfinite", "spike"]
"""nonfinite: loss or gradient norm is no finite number. spike: the loss is far above those before it."""


@dataclass(frozen=True)
class Rollback:
    """One way back: the fault at `step`, which began at `began` (the first of the steps skipped before it), to the checkpoint of `to`.

    `lr_factor` holds for the steps behind `to` up to `until`; `left_out`: samples from the first position up to the second.
    """

    step: int
    began: int
    to: int
    cause: str
    attempt: int = 0
    t: float = 0.0
    lr_factor: float = 1.0
    until: int = 0
    left_out: tuple[int, int] | None = None


@dataclass(frozen=True)
class Book:
    """`skipped`: steps that were left out because of a fault, of all attempts."""

    skipped: int = 0
    rollbacks: tuple[Rollback, ...] = ()

    def lr_factor(self, step: int) -> float:
        """What the learning rate of a step is multiplied by."""
        return math.prod((one.lr_factor for one in self.rollbacks if one.to < step <= one.until), start=1.0)

    def position(self, at: int) -> int:
        """Where the next step reads when it would read at this position."""
        ends: dict[int, int] = {}
        for one in self.rollbacks:
            if one.left_out is not None:
                start, end = one.left_out
                ends[start] = max(end, ends.get(start, 0))
        while at in ends:
            at = ends.pop(at)
        return at

    def with_skip(self) -> Book:
        return replace(self, skipped=self.skipped + 1)

    def with_rollback(self, rollback: Rollback) -> Book:
        return replace(self, rollbacks=(*self.rollbacks, rollback))

    def to_json(self) -> bytes:
        return to_json({"v": INTERVENTIONS_VERSION, **asdict(self)})


def read_book(path: Path) -> Book:
    """What the file has; nothing where there is none. Raises ValueError for one that is damaged, and OSError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Book()
    try:
        raw = json.loads(data)
        return Book(int(raw["skipped"]), tuple(_rollback(one) for one in raw["rollbacks"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path}: not what was done about numbers: {error!r}") from error


def _rollback(raw: Mapping[str, Any]) -> Rollback:
    known = {one.name: raw[one.name] for one in fields(Rollback) if one.name in raw}
    span = known.get("left_out")
    return Rollback(**{**known, "left_out": None if span is None else (int(span[0]), int(span[1]))})
