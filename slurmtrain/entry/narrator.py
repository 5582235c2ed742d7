"""What the run folder is told of a script: its start, steps, checkpoints and end, as events of rank 0, by one rank alone.

Steps that an earlier attempt has told already are marked as `replay`: a curve drawn from the events has each step once.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from slurmtrain.atomic import Disk
from slurmtrain.clock import Clock
from slurmtrain.config.entry import EntryConfig
from slurmtrain.entry.place import Place
from slurmtrain.rundir import RunDir
from slurmtrain.store.foreign import Foreign, newest_foreign, newest_seen, read_told, write_told
from slurmtrain.telemetry.reader import parse_lines

_TAIL_BYTES = 1 << 20


class Sink(Protocol):
    """Where events go."""

    def emit(self, kind: str, /, **fields: Any) -> None: ...

    def close(self, timeout_s: float = 5.0) -> bool: ...


@dataclass(frozen=True)
class Found:
    """What names of files tell: the newest checkpoint, and the highest step."""

    durable: Foreign | None = None
    step: int | None = None


def look(run: RunDir, entry: EntryConfig) -> Found:
    """Raises OSError."""
    return Found(newest_foreign(run, entry), newest_seen(run, entry.progress_files) if entry.progress_files else None)


class Narrator:
    """`before`: the highest step that any earlier attempt has told of; `durable`: the newest checkpoint when the attempt began."""

    def __init__(self, run: RunDir, sink: Sink, clock: Clock, disk: Disk, *, before: int = 0, durable: int | None = None) -> None:
        self._run, self._sink, self._clock, self._disk = run, sink, clock, disk
        self._before, self._durable = before, durable
        self._last: tuple[int, float] | None = None

    def begin(self, place: Place, resumed_from: int | None) -> None:
        self._sink.emit("start", world=place.world, layout={"dp": place.world}, resumed_from=resumed_from, script=True)

    def step(self, step: int, fields: Mapping[str, Any]) -> None:
        """A step is done; the same one told again says nothing new. `step_s`: of one step; `count`: steps that a line stands for."""
        now, last = self._clock.monotonic(), self._last
        if last is not None and step == last[0]:
            return
        told: dict[str, Any] = {"step": step, **{k: v for k, v in fields.items() if k not in {"step", "step_s", "count", "replay"}}}
        if last is not None and step > last[0]:
            told["step_s"] = (now - last[1]) / (step - last[0])
            told |= {"count": step - last[0]} if step - last[0] > 1 else {}
        if step <= self._before:
            told["replay"] = True
        self._last = (step, now)
        self._sink.emit("step", **told)

    def durable(self, step: int, told: Foreign) -> None:
        """The script says that a checkpoint is complete."""
        with suppress(OSError):
            write_told(self._run, told, self._disk)
        self._saved(step)

    def found(self, found: Found) -> None:
        """Files tell of a checkpoint."""
        if found.durable is not None:
            self._saved(found.durable.step)

    def end(self, kind: str, step: int, error: str) -> None:
        if kind == "finished":
            self._sink.emit("finish", step=step)
        elif kind == "stopped":
            self._sink.emit("stop", step=step, reason=error)
        self._sink.close()

    def _saved(self, step: int) -> None:
        if self._durable is None or step > self._durable:
            self._durable = step
            self._sink.emit("save", step=step)


def last_step(run: RunDir) -> int:
    """The highest step that the events tell of, as far as their end reaches; 0 where there is none."""
    try:
        with open(run.event_file(0), "rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            events = parse_lines(file.read())
    except OSError:
        return 0
    steps = (event.fields.get("step") for event in events if event.kind == "step")
    return max((step for step in steps if isinstance(step, int)), default=0)


def going_on_from(run: RunDir, entry: EntryConfig) -> Foreign | None:
    """The newest checkpoint; none where the folder cannot be read."""
    try:
        return newest_foreign(run, entry)
    except OSError:
        return read_told(run)
