"""Looks at the shared folder in a thread of its own: one that stands still must hold up neither the script nor what it prints."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from slurmtrain.clock import Clock
from slurmtrain.entry.corner import Corner
from slurmtrain.entry.narrator import Found
from slurmtrain.rundir import AttemptDir
from slurmtrain.telemetry.exitfile import StopReason
from slurmtrain.telemetry.stopfile import read_stop

STOP_S = 1.0
FILES_S = 5.0


class Lookout:
    """`for_stop`: this rank looks whether a stop is asked, and leaves the mark for its node; `look`: finds files that tell of progress."""

    def __init__(
        self, attempt: AttemptDir, corner: Corner | None, clock: Clock, *, for_stop: bool, look: Callable[[], Found] | None
    ) -> None:
        self._attempt, self._corner, self._clock = attempt, corner, clock
        self._for_stop, self._look = for_stop or corner is None, look
        self._seen: StopReason | None = None
        self._found: deque[Found] = deque()
        self._leave = threading.Event()

    def start(self) -> None:
        if self._for_stop or self._look is not None:
            threading.Thread(target=self._run, name="lookout", daemon=True).start()

    def stop(self) -> None:
        self._leave.set()

    def asked(self) -> StopReason | None:
        """Why a stop is asked, as far as it is known: never waits for the shared folder."""
        if self._seen is None and self._corner is not None:
            self._seen = self._corner.asked()
        return self._seen

    def asked_now(self) -> StopReason | None:
        """The same, with a look at the shared folder."""
        return self.asked() or read_stop(self._attempt.stop)

    def found(self) -> list[Found]:
        """What was found since."""
        found = []
        while self._found:
            found.append(self._found.popleft())
        return found

    def _run(self) -> None:
        looked_at = float("-inf")
        while not self._leave.is_set():
            if self._for_stop and self._seen is None:
                self._look_for_stop()
            if self._look is not None and self._clock.monotonic() - looked_at >= FILES_S:
                looked_at = self._clock.monotonic()
                with suppress(OSError):
                    self._found.append(self._look())
            self._clock.wait(self._leave, STOP_S)

    def _look_for_stop(self) -> None:
        reason = read_stop(self._attempt.stop)
        if reason is not None and self._corner is not None:
            self._corner.ask(reason)
        self._seen = reason or self._seen
