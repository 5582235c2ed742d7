"""A thread that makes values ahead of their use: bounded, in order, its errors surface where the value is taken."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetch(Generic[T]):
    """At most `depth` values of `make` wait to be taken. After an error nothing more is made; each `take` behind the values made
    before raises it. The thread is a daemon, so that a process may leave without `close`.
    """

    def __init__(self, make: Callable[[], T], depth: int) -> None:
        assert depth >= 1, depth
        self._make, self._depth = make, depth
        self._ready: deque[T] = deque()
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="slurmtrain-prefetch", daemon=True)
        self._thread.start()

    def take(self) -> T:
        """The next value; waits for it. Raises what `make` raised."""
        with self._changed:
            assert not self._closed, "taken after close"
            self._changed.wait_for(lambda: self._ready or self._error is not None)
            if self._ready:
                value = self._ready.popleft()
                self._changed.notify_all()
                return value
            assert self._error is not None
            raise self._error

    def close(self) -> None:
        """End the thread; it finishes what it is making. Values that wait are dropped."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while self._room():
            try:
                value = self._make()
            except BaseException as error:  # noqa: BLE001 the taker gets it
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                if not self._closed:
                    self._ready.append(value)
                self._changed.notify_all()

    def _room(self) -> bool:
        """Wait until there is room; False when it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._ready) < self._depth)
            return not self._closed
