"""The probe's end of the connection: orders come in, replies go out, and a second thread sees that this process outlives neither.

The thread listens. When the conductor is gone it ends the process, whatever the main thread is in the middle of; when an order is not
finished in time it says so in the main thread's place, and has the process start anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from slurmtrain.clock import Clock
from slurmtrain.preflight.lines import encode, keep_alive
from slurmtrain.preflight.probing import Reply

_READ_BYTES = 1 << 16
_LONGEST_LOOK_S = 1.0
_STOPPED_S, _GRACE_S = 3.0, 5.0
"""Between two looks is more than the first: the whole process was stopped, and its main thread has the second to finish."""


def leave() -> None:
    """Without teardown: there is nobody to wait for."""
    os._exit(0)


class Link:
    """`restart`: replaces this process by a new one of its kind, and does not return."""

    def __init__(self, sock: socket.socket, clock: Clock, restart: Callable[[], None]) -> None:
        sock.settimeout(None)
        with contextlib.suppress(OSError):
            keep_alive(sock)
        self._sock, self._clock, self._restart = sock, clock, restart
        self._orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._at_work: dict[str, Any] | None = None
        self._stuck_at, self._looked = 0.0, clock.monotonic()
        self._wake, self._woken = socket.socketpair()
        threading.Thread(target=self._listen, name="probe-link", daemon=True).start()

    def say(self, message: dict[str, Any]) -> None:
        """Ends the process where the conductor is gone."""
        with self._lock:
            self._send(message)

    def orders(self) -> Iterator[dict[str, Any]]:
        """Orders as they come, without end; each must be answered by `reply` before the next is taken."""
        while True:
            message = self._orders.get()
            with self._lock:
                self._at_work, self._stuck_at = message, self._clock.monotonic() + float(message["stuck_s"])
            self._wake.send(b"x")
            yield message

    def reply(self, reply: Reply) -> None:
        """Answer the order that is at work."""
        with self._lock:
            assert self._at_work is not None
            number, self._at_work = self._at_work["id"], None
            self._send({"id": number, "reply": reply.to_json(), "restarts": False})

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._sock.sendall(encode(message))
        except OSError:
            leave()

    def _listen(self) -> None:
        got = b""
        while True:
            ready, _, _ = select.select([self._sock, self._woken], [], [], self._patience_s())
            if self._woken in ready:
                self._woken.recv(_READ_BYTES)
            if self._sock in ready:
                try:
                    part = self._sock.recv(_READ_BYTES)
                except OSError:
                    part = b""
                if not part:
                    leave()
                *whole, got = (got + part).split(b"\n")
                for line in whole:
                    self._orders.put(json.loads(line))
            self._end_what_is_stuck()

    def _patience_s(self) -> float:
        with self._lock:
            left_s = _LONGEST_LOOK_S if self._at_work is None else self._stuck_at - self._clock.monotonic()
            return max(0.0, min(_LONGEST_LOOK_S, left_s))

    def _end_what_is_stuck(self) -> None:
        """Say in the main thread's place that its order hangs, and start anew. The lock is kept: the main thread says nothing any more."""
        with self._lock:
            now = self._clock.monotonic()
            if now - self._looked > _STOPPED_S:
                self._stuck_at = max(self._stuck_at, now + _GRACE_S)
            self._looked = now
            if self._at_work is None or now < self._stuck_at:
                return
            what = self._at_work["order"]["do"]
            reply = Reply(ok=False, said=f"{what} hangs in a call that does not return: the probe starts anew")
            self._send({"id": self._at_work["id"], "reply": reply.to_json(), "restarts": True})
            self._restart()
