"""Messages between a rank and its writer: pickled values, and descriptors, over a pair of sockets that both ends made themselves."""

from __future__ import annotations

import os
import pickle
import select
import socket
import struct
from collections.abc import Sequence
from typing import Any

SEND_WITHIN_S = 10.0
"""Whoever does not read for so long has stopped."""
_HEAD = struct.Struct("<QB")
"""Bytes of the value, and how many descriptors come with it."""


class Wire:
    """One end. `send` raises OSError when the other end is gone or stopped; `receive` raises EOFError when it is gone."""

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(SEND_WITHIN_S)
        self._end = end
        self._poll = select.poll()  # select.select takes no descriptor above 1023, and a rank of a large world has more
        self._poll.register(end, select.POLLIN)
        self._held = bytearray()
        self._fds: list[int] = []

    def send(self, value: Any, fds: Sequence[int] = ()) -> None:
        data = pickle.dumps(value)
        head = _HEAD.pack(len(data), len(fds))
        socket.send_fds(self._end, [head], list(fds))
        self._end.sendall(data)

    def receive(self, timeout_s: float | None = None) -> tuple[Any, list[int]] | None:
        """The next value and the descriptors that came with it, which are the caller's now; None when the time was over first.

        None waits for ever, 0 not at all.
        """
        while (whole := self._whole()) is None:
            if not self._poll.poll(None if timeout_s is None else timeout_s * 1000):
                return None
            try:
                data, fds, _, _ = socket.recv_fds(self._end, 1 << 20, 4)
            except ConnectionError as error:
                raise EOFError from error
            self._fds += fds
            if not data:
                raise EOFError
            self._held += data
        value, count = whole
        fds, self._fds = self._fds[:count], self._fds[count:]
        return value, fds

    def _whole(self) -> tuple[Any, int] | None:
        if len(self._held) < _HEAD.size:
            return None
        size, count = _HEAD.unpack_from(self._held)
        if len(self._held) < _HEAD.size + size:
            return None
        value = pickle.loads(self._held[_HEAD.size : _HEAD.size + size])  # noqa: S301 of a process that we started
        del self._held[: _HEAD.size + size]
        return value, count

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds = []
        self._end.close()


def pair() -> tuple[Wire, socket.socket]:
    """An end for this process, and one to hand to another."""
    ours, theirs = socket.socketpair()
    return Wire(ours), theirs
