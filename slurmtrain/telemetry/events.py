"""The event: its type and its JSON line.

>>> line = Event("step", 12.5, attempt=1, rank=0, fields={"step": 3, "loss": 5.5}).to_line()
>>> line
'{"v":1,"t":12.5,"attempt":1,"rank":0,"kind":"step","step":3,"loss":5.5}\\n'
>>> Event.from_line(line).fields["loss"]
5.5
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slurmtrain.units import moment

EVENT_VERSION = 1
_HEAD = ("v", "t", "attempt", "rank", "kind")


@dataclass(frozen=True)
class Event:
    """Something that happened on a rank. `t` is seconds since the epoch.

    Kinds of this release, of every node: `start` (world, layout, resumed_from, what MFU is measured by, of a pipeline the schedule and
    the bubble that it should have), `load` (step, seconds, passed_over, tier), `note` (text), `stop` (step, reason), `error` (error),
    `finish` (step); of rank 0 alone, about the whole world: `step` (step, loss, grad_norm, lr, tokens, step_s, rates, and the figures
    of the step before as `previous`), `skip` (step, cause), `rollback` (step, to, cause, changed), `corruption` (step, suspects, and what
    comes next or was found), `eval` (step, set, eval_loss, tokens, seconds), `target` (step, metric, value and what it took), `save`
    (step, seconds, write_s, bytes), `interval` (seconds, and what it follows from), `save_failed` (step,
    error), `aside` (step, why), `change` (step, keys). docs/formats.md has every field.
    """

    kind: str
    t: float
    attempt: int
    rank: int
    fields: Mapping[str, Any] = field(default_factory=dict)

    def to_line(self) -> str:
        """One JSON line; a number that JSON has no word for (NaN, inf) becomes text."""
        safe = {name: _speakable(value) for name, value in self.fields.items() if name not in _HEAD}
        head = {"v": EVENT_VERSION, "t": self.t, "attempt": self.attempt, "rank": self.rank, "kind": self.kind}
        return json.dumps({**head, **safe}, separators=(",", ":"), allow_nan=False) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Event:
        """Raises ValueError for what is not an event."""
        raw = json.loads(line)
        if not isinstance(raw, dict) or any(key not in raw for key in _HEAD):
            raise ValueError(f"not an event: {line[:80]!r}")
        rest = {k: v for k, v in raw.items() if k not in _HEAD}
        return cls(raw["kind"], moment(raw["t"]), int(raw["attempt"]), int(raw["rank"]), rest)


def _speakable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _speakable(one) for name, one in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
