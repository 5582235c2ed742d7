"""Writers of asynchronous saves come from a small process that was started before MPI and CUDA: a rank itself never forks.

It has loaded numpy and what a writer needs, has one thread, and does nothing but fork on demand and end what it forked, by number,
while nobody else can have that number. It ends with its rank; writers end by themselves (`writer_process`).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass

from slurmtrain.checkpoint.wire import Wire, pair
from slurmtrain.errors import CheckpointError

ANSWER_WITHIN_S = 60.0
"""Also for the first answer, for which the process must have loaded numpy from a shared folder."""
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Started:
    """A writer that was just started: its number and our end of the wire to it."""

    pid: int
    wire: Wire


class ForkServer:
    """Starts and ends writers. Errors: CheckpointError where the process is gone or does not answer."""

    def __init__(self) -> None:
        self._wire, theirs = pair()
        code = f"import sys; sys.path[:] = {sys.path!r}; from slurmtrain.checkpoint.writer_process import serve; serve({theirs.fileno()})"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # a rank's own would stay open, and whoever waits for its end would wait for writers
                stderr=subprocess.DEVNULL,
                env={**os.environ, **_ONE_THREAD},
            )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def start(self, door: str) -> Started:
        """A new writer. `door`: MODULE:FUNCTION:WORD, which makes its `Syscalls` of the word, for tests; empty: the system's."""
        ours, theirs = pair()
        try:
            with theirs:
                self._wire.send(("start", door), [theirs.fileno()])
            return Started(int(self._answer()), ours)
        except BaseException:
            ours.close()
            raise

    def end(self, pid: int) -> str:
        """Kill a writer that this server started, however it stands; how it ended, in words."""
        self._wire.send(("end", pid))
        return how_ended(int(self._answer()))

    def close(self) -> None:
        """Let the process end; its writers end by themselves."""
        self._wire.close()
        for last in (False, True):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(5.0)
                return
            if not last:
                self._process.kill()

    def _answer(self) -> int:
        try:
            received = self._wire.receive(ANSWER_WITHIN_S)
        except (EOFError, OSError) as error:
            raise CheckpointError(f"the process that starts writers is gone ({how_ended(self._process.poll() or 0)})") from error
        if received is None:
            self._process.kill()  # a late answer would be taken for that to another question; who is stopped hears nothing else
            self._process.wait()
            raise CheckpointError(f"the process that starts writers did not answer within {ANSWER_WITHIN_S:.0f} s")
        if isinstance(received[0], str):
            raise CheckpointError(f"no writer could be started: {received[0]}")
        return int(received[0])


def start_forkserver() -> ForkServer:
    """Start the process from which writers come. To be called before MPI, CUDA and torch are loaded; takes a millisecond."""
    return ForkServer()


def how_ended(code: int) -> str:
    """An exit code as `os.waitstatus_to_exitcode` gives it, in words.

    >>> how_ended(-9), how_ended(1)
    ('killed by SIGKILL', 'ended with code 1')
    """
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def socket_of(fd: int) -> socket.socket:
    """The socket behind an inherited descriptor."""
    return socket.socket(fileno=fd)
