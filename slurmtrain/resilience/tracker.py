"""What the events have told so far: how slow saves and steps are, how far this attempt is, and whether a rank has spoken at all."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median

from slurmtrain.telemetry.events import Event

_RECENT_STEPS = 50


class Tracker:
    """Takes events of all attempts: a save of an earlier attempt is as slow as the next one will be."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.slowest_save_s = 0.0
        self.spoke = False
        self.steps_done = 0
        """Steps of this attempt."""
        self.last_step: int | None = None
        self.newest_t: float | None = None
        """When the newest event of this attempt was made, in seconds since the epoch."""
        self._recent: deque[float] = deque(maxlen=_RECENT_STEPS)

    @property
    def step_s(self) -> float:
        """The slowest of the recent steps, in seconds."""
        return max(self._recent, default=0.0)

    @property
    def median_step_s(self) -> float:
        """The median of the recent steps, in seconds; 0 where there are none."""
        return median(self._recent) if self._recent else 0.0

    def take(self, events: Iterable[Event]) -> list[Event]:
        """Learn from the events; those of this attempt, in order."""
        mine: list[Event] = []
        for event in events:
            self._learn(event)
            if event.attempt == self.attempt:
                self.spoke = True
                self.newest_t = max(event.t, self.newest_t or event.t)
                mine.append(event)
        return mine

    def _learn(self, event: Event) -> None:
        step, step_s = event.fields.get("step"), event.fields.get("step_s")
        if event.kind == "save":  # before an end the whole of a save is waited for, also of one that training goes on beside
            told = [event.fields.get(key) for key in ("seconds", "write_s")]
            self.slowest_save_s = max(self.slowest_save_s, *(float(one) for one in told if isinstance(one, (int, float))), 0.0)
        if event.kind != "step":
            return
        if isinstance(step_s, (int, float)):
            self._recent.append(float(step_s))
        if event.attempt == self.attempt:
            self.steps_done += 1
            self.last_step = step if isinstance(step, int) else self.last_step
