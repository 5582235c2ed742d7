"""Signals of the supervisor: handlers count and remember when, and do nothing else. The loop looks twice a second.

USR2: the notice before the end (`--signal=B:USR2@...`, forwarded by the batch script). TERM: Slurm ends the job. INT: Ctrl-C, in the
foreground alone. No `threading.Event` here: setting one in a handler can wait for ever for a lock that the main thread holds.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

NOTICE, TERM, INTERRUPT = signal.SIGUSR2, signal.SIGTERM, signal.SIGINT


class Signals:
    """How often each signal came, and when first (seconds of the given monotonic clock)."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._count: dict[int, int] = {}
        self._first: dict[int, float] = {}

    def receive(self, signum: int, _frame: FrameType | None = None) -> None:
        """The handler; tests call it too."""
        self._count[signum] = self._count.get(signum, 0) + 1
        self._first.setdefault(signum, self._monotonic())

    def count(self, signum: int) -> int:
        return self._count.get(signum, 0)

    def since(self, signum: int) -> float | None:
        """When it came first; None when it did not."""
        return self._first.get(signum)

    @property
    def any(self) -> bool:
        return bool(self._count)

    def listen(self, signums: Iterable[int]) -> dict[int, Any]:
        """Install the handler for these signals; the handlers of before. Only the main thread can."""
        assert threading.current_thread() is threading.main_thread()
        return {number: signal.signal(number, self.receive) for number in signums}

    @contextmanager
    def listening(self, signums: Iterable[int]) -> Iterator[None]:
        """`listen` for a while."""
        before = self.listen(signums)
        try:
            yield
        finally:
            _restore(before)

    @contextmanager
    def listening_as(self, signum: int, others: Iterable[int]) -> Iterator[None]:
        """Count other signals as this one, for a while."""
        before = {number: signal.signal(number, lambda *_: self.receive(signum)) for number in others}
        try:
            yield
        finally:
            _restore(before)


def _restore(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
