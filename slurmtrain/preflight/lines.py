"""JSON objects, one a line, over a TCP connection: what the conductor of measurements and its members say to each other.

| from | object | |
|---|---|---|
| member | {"hello": {"token", "node", "local", "problem"}} | problem: why it can do nothing, else empty |
| conductor | {"id", "order", "limit_s", "stuck_s", "group"} | group: {"rank", "size", "names", "host", "port"}, or null |
| member | {"id", "host", "port"} | the first of a group offers its store |
| member | {"id", "reply", "restarts"} | restarts: it will say hello again, from a new start |
"""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

MOST_BYTES = 1 << 22
"""Of one line."""
_READ_BYTES = 1 << 16
_IDLE_S, _INTERVAL_S, _PROBES = 10, 5, 3
"""Of TCP's keepalive: a peer whose machine is dead is known to be gone after 25 s."""


class BrokenLineError(Exception):
    """What came is no line of JSON, or there is no end to it."""


def encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def keep_alive(sock: socket.socket) -> None:
    """Have the kernel look after the connection, and send short lines at once."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, value in ((socket.TCP_KEEPIDLE, _IDLE_S), (socket.TCP_KEEPINTVL, _INTERVAL_S), (socket.TCP_KEEPCNT, _PROBES)):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


class Line:
    """A connection that never blocks: what cannot be sent now is kept until `flush`."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)  # noqa: FBT003 socket's own
        with contextlib.suppress(OSError):
            keep_alive(sock)
        self.sock, self._got, self._unsent = sock, bytearray(), bytearray()

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def full(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._unsent)

    def say(self, message: dict[str, Any]) -> None:
        """Raises OSError where the peer is gone."""
        self._unsent += encode(message)
        self.flush()

    def flush(self) -> None:
        """Send what can be sent. Raises OSError where the peer is gone."""
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: self.sock.send(self._unsent)]

    def heard(self) -> list[dict[str, Any]] | None:
        """Objects that have come; None where the peer is gone. Raises BrokenLineError for what is none."""
        try:
            part = self.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not part:
            return None
        self._got += part
        *whole, rest = bytes(self._got).split(b"\n") if b"\n" in part else (bytes(self._got),)
        if len(rest) > MOST_BYTES:
            raise BrokenLineError("a line without end")
        self._got = bytearray(rest)
        return [_decoded(line) for line in whole]

    def close(self) -> None:
        self.sock.close()


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        raw = json.loads(line)
    except ValueError as error:
        raise BrokenLineError(f"no JSON: {line[:80]!r}") from error
    if not isinstance(raw, dict):
        raise BrokenLineError(f"no object: {line[:80]!r}")
    return raw
