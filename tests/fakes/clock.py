"""The fake of slurmtrain.clock.Clock: time moves by sleep and wait alone, and what was arranged for a moment happens then."""

from __future__ import annotations

import threading
from collections.abc import Callable

REAL_PAUSE_S = 0.001
"""How long other threads may run at each sleep."""


class FakeClock:
    """Starts at `epoch` (seconds since 1970) and 1000 s of monotonic time. `slept`: every sleep and wait that was asked for."""

    def __init__(self, epoch: float = 1_700_000_000.0) -> None:
        self._epoch, self._now = epoch, 0.0
        self._due: list[tuple[float, Callable[[], object]]] = []
        self.slept: list[float] = []

    def time(self) -> float:
        return self._epoch + self._now

    def monotonic(self) -> float:
        return 1000.0 + self._now

    def at(self, seconds: float, deed: Callable[[], object]) -> None:
        """Arrange a deed for `seconds` from now; it is done by the sleep or wait that passes that moment."""
        self._due.append((self._now + seconds, deed))

    def advance(self, seconds: float) -> None:
        """Let time pass, and what is due happen, in order."""
        self._pass(max(0.0, seconds), lambda: False)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)
        threading.Event().wait(REAL_PAUSE_S)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        if event.is_set():
            return True
        self.slept.append(timeout_s)
        self._pass(max(0.0, timeout_s), event.is_set)
        return event.is_set() or event.wait(REAL_PAUSE_S)

    def _pass(self, seconds: float, enough: Callable[[], bool]) -> None:
        end = self._now + seconds
        while not enough():
            due = min((entry for entry in self._due if entry[0] <= end), key=lambda entry: entry[0], default=None)
            if due is None:
                self._now = end
                return
            self._due.remove(due)
            self._now = max(self._now, due[0])
            due[1]()
