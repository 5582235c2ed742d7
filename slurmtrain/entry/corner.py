"""A rank's corner of its node's memory: the pipe that its script speaks into, and the mark that tells all ranks of the node to stop.

One rank of each node looks at the shared folder, once a second, and leaves the mark for the others: a thousand ranks ask it nothing.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from slurmtrain.telemetry.exitfile import StopReason
from slurmtrain.telemetry.stopfile import read_stop, stop_bytes

_MOST = 1 << 20


class Corner:
    """In the folder in which the ranks of the node beat. Raises OSError where nothing can be made there."""

    def __init__(self, folder: Path, rank: int, mark: str) -> None:
        """`mark`: of the attempt; what an attempt of a run that was removed has left here is another's."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.stop, self.pipe = folder / f"stop-{mark}", folder / f"entry-{rank:05d}.pipe"
        self.pipe.unlink(missing_ok=True)
        os.mkfifo(self.pipe, 0o600)
        # For reading and writing: it is never at its end, whoever comes and goes, and opening it waits for nobody (fifo(7)).
        self.fd = os.open(self.pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def read(self) -> bytes:
        """What the script has said since; empty where it said nothing."""
        try:
            return os.read(self.fd, _MOST)
        except BlockingIOError:
            return b""

    def asked(self) -> StopReason | None:
        return read_stop(self.stop)

    def ask(self, reason: StopReason) -> None:
        """Tell all ranks of the node."""
        aside = self.stop.with_name(f".stop-{os.getpid()}")
        with suppress(OSError):
            aside.write_bytes(stop_bytes(reason))
            aside.replace(self.stop)

    def close(self) -> None:
        """The mark stays for the others of the node; it is of this attempt alone."""
        os.close(self.fd)
        self.pipe.unlink(missing_ok=True)
