"""The one door to time. Code that waits or reads a clock takes a `Clock`; tests give it a fake."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Wall and monotonic time, in seconds, and waiting."""

    def time(self) -> float:
        """Seconds since the epoch; for records that people read."""

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back; for limits. Never compared between machines."""

    def sleep(self, seconds: float) -> None:
        """Wait."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait for the event, at most that long; True when it is set."""


class SystemClock:
    """The machine's clocks."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(max(0.0, timeout_s))
