"""A rank's end of its writer: one process at a time, and a fresh one after a loss."""

from __future__ import annotations

from contextlib import suppress

from slurmtrain.checkpoint.forkserver import ForkServer, Started
from slurmtrain.checkpoint.orders import Ended, Fail, Setting
from slurmtrain.checkpoint.writer_process import Work
from slurmtrain.errors import CheckpointError


class LostError(CheckpointError):
    """The writer is gone; the text says how, as in "its writer was killed by SIGKILL"."""


class Link:
    """Starts a writer when there is work and none. Not for several threads."""

    def __init__(self, server: ForkServer | None, door: str) -> None:
        self._server, self._door = server, door
        self._writer: Started | None = None
        self._setting: tuple[Setting, int] | None = None
        self._sent = False

    def set(self, setting: Setting, fd: int) -> None:
        """What holds from the next piece of work on; `fd`: of the image. The writer is started, if it can be."""
        self._setting, self._sent = (setting, fd), False
        with suppress(CheckpointError):
            self._ready()

    def give(self, work: Work) -> None:
        """Raises CheckpointError where no writer can be started or takes it."""
        try:
            self._send(work)
        except OSError:  # it died, or stopped, while it had nothing to do
            self.kill()
            try:
                self._send(work)
            except OSError as error:
                raise CheckpointError(f"its writer does not answer: {error}") from error

    def fail(self, fail: Fail) -> None:
        """Tell the writer, if it lives, to give up."""
        if self._writer is not None:
            with suppress(OSError):
                self._writer.wire.send(fail)

    def look(self, seconds: float = 0.0) -> Ended | None:
        """The next answer; None when none comes within so long. Raises LostError once, when the writer is gone."""
        if self._writer is None:
            return None
        try:
            received = self._writer.wire.receive(seconds)
        except (EOFError, OSError):
            raise LostError(f"its writer was lost ({self.kill()})") from None
        return None if received is None else received[0]

    def kill(self) -> str:
        """End the writer, if there is one, however it stands; how it ended, in words."""
        writer, self._writer, self._sent = self._writer, None, False
        if writer is None:
            return ""
        writer.wire.close()
        assert self._server is not None
        try:
            return self._server.end(writer.pid)
        except (CheckpointError, OSError):
            return "how is not known"

    def close(self) -> None:
        """Let writer and server end by themselves."""
        if self._writer is not None:
            self._writer.wire.close()
            self._writer = None
        if self._server is not None:
            self._server.close()
            self._server = None

    def _send(self, work: Work) -> None:
        self._ready().wire.send(work)

    def _ready(self) -> Started:
        """A writer that has the setting."""
        assert self._setting is not None
        if self._writer is None:
            self._writer = self._started()
        if not self._sent:
            setting, fd = self._setting
            self._writer.wire.send(setting, [fd])
            self._sent = True
        return self._writer

    def _started(self) -> Started:
        if self._server is not None and not self._server.alive:
            self._server.close()
            self._server = None
        try:
            if self._server is None:  # a last resort: it was to be started before MPI
                self._server = ForkServer()
            return self._server.start(self._door)
        except OSError as error:
            raise CheckpointError(f"no writer could be started: {error.strerror or error}") from error
