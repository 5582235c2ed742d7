"""Events of rank 0 -> what each attempt told, as small as it can be: a run of a million steps is read line by line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurmtrain.report.kinds import STAGES, Kind
from slurmtrain.telemetry.events import Event

MICRO = 1_000_000
EVALUATION, WAY_BACK = -1, -2
"""What a mark is that is no step."""


def micro(seconds: float) -> int:
    """Whole microseconds: sums of them are exact."""
    return round(seconds * MICRO)


@dataclass(slots=True)
class Mark:
    """A step (`step` >= 0), an evaluation or a way back to an earlier checkpoint, that ended at `t` and took `took` (None: not told);
    both in microseconds.

    `count`: steps that it stands for (a script may tell of every tenth), of which `step` is the last; `stall`: how long training stood
    still for saves just before this step, as all ranks measured it; `mfu`: of the step.
    """

    t: int
    took: int | None
    step: int = EVALUATION
    count: int = 1
    stall: int | None = None
    mfu: float | None = None


@dataclass
class Told:
    """An attempt in rank 0's words; times in microseconds.

    `up`: when it announced itself; `stages`: what its start had taken by then; `load`: what loading took; `resumed`: the step that it began
    from (None: not told); `saves`: by step, how long training stood still for its save; `over`: when the ranks left by agreement; `newest`:
    the newest of its events.
    """

    up: int | None = None
    stages: dict[Kind, int] = field(default_factory=dict)
    load: int = 0
    resumed: int | None = None
    marks: list[Mark] = field(default_factory=list)
    saves: dict[int, int] = field(default_factory=dict)
    over: int | None = None
    newest: int | None = None

    def steps(self) -> Iterator[Mark]:
        return (mark for mark in self.marks if mark.step >= 0)

    @property
    def began_from(self) -> int | None:
        """The step that it began from: as told, else the one before its first; None: it made none, and told none."""
        if self.resumed is not None:
            return self.resumed
        first = next(self.steps(), None)
        return None if first is None else first.step - first.count


def read_lines(path: Path) -> Iterator[Event]:
    """The events of a file, one after another; nothing where it cannot be read, and nothing of what is torn or foreign."""
    try:
        with open(path, "rb") as file:
            for line in file:
                try:
                    yield Event.from_line(line.decode(errors="replace"))
                except (ValueError, TypeError, OverflowError):
                    continue
    except OSError:
        return


def tell(events: Iterable[Event]) -> dict[int, Told]:
    """What each attempt told, by its number; its marks in the order of their times."""
    found: dict[int, Told] = {}
    for event in events:
        if math.isfinite(event.t):
            _take(found.setdefault(event.attempt, Told()), event)
    for told in found.values():
        told.marks.sort(key=lambda mark: mark.t)
    return found


def _take(told: Told, event: Event) -> None:
    t, f = micro(event.t), event.fields
    told.newest = t if told.newest is None else max(told.newest, t)
    if event.kind == "step" and isinstance(f.get("step"), int):
        previous = f.get("previous")
        stall = _micro(previous.get("checkpoint_s")) if isinstance(previous, Mapping) else None
        count = told_count if isinstance(told_count := f.get("count"), int) and told_count > 1 else 1
        took = _micro(f.get("step_s"))
        told.marks.append(Mark(t, None if took is None else took * count, f["step"], count, stall, _number(f.get("mfu"))))
    elif event.kind == "eval":
        told.marks.append(Mark(t, _micro(f.get("seconds"))))
    elif event.kind == "rollback":
        told.marks.append(Mark(t, _micro(f.get("seconds")), WAY_BACK))
    elif event.kind == "save" and isinstance(f.get("step"), int):
        told.saves[f["step"]] = max(told.saves.get(f["step"], 0), _micro(f.get("seconds")) or 0)
    elif event.kind == "start":
        told.up, told.stages = t, _stages(f.get("startup"))
        resumed = f.get("resumed_from")
        told.resumed = resumed if isinstance(resumed, int) else 0
    elif event.kind == "load":
        told.load = _micro(f.get("seconds")) or 0
    elif event.kind in {"stop", "finish"}:
        told.over = t


def _stages(startup: Any) -> dict[Kind, int]:
    if not isinstance(startup, Mapping):
        return {}
    return {stage: took for stage in STAGES if (took := _micro(startup.get(f"{stage}_s"))) is not None}


def _micro(value: Any) -> int | None:
    seconds = _number(value)
    return None if seconds is None or seconds < 0 else micro(seconds)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) else None
