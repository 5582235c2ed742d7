"""The script as a child: in a process group of its own, its output through pipes, and never longer alive than who looks after it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from slurmtrain.errors import LaunchError

_PR_SET_PDEATHSIG = 1
_STOPPED = frozenset("Tt")
_BLOCK = 1 << 16


class Child:
    """A started script."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        assert popen.stdout is not None
        assert popen.stderr is not None
        self._popen, self.out, self.err = popen, popen.stdout.fileno(), popen.stderr.fileno()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def poll(self) -> int | None:
        return self._popen.poll()

    def signal(self, number: int) -> None:
        """To the script's process itself, not to what it has started: so torchrun does it."""
        with suppress(ProcessLookupError):
            self._popen.send_signal(number)

    def stands_still(self) -> bool:
        """Whether it was stopped (SIGSTOP, a debugger)."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] in _STOPPED
        except (OSError, IndexError):
            return False

    def end_group(self) -> None:
        """Kill whatever the script has left in its process group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def start(words: Sequence[str], *, env: Mapping[str, str], cwd: Path, keep_fds: bool = False) -> Child:
    """Start it. `keep_fds`: with the descriptors that a launcher of MPI ranks has left open for it. Raises LaunchError."""
    die_with_us = _when_the_parent_dies()
    try:
        popen = subprocess.Popen(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=dict(env),
            cwd=cwd,
            process_group=0,
            close_fds=not keep_fds,
            preexec_fn=die_with_us,  # noqa: PLW1509 no thread runs yet
        )
    except OSError as error:
        raise LaunchError(f"entry.command: {error.filename or words[0]}: {error.strerror}") from error
    return Child(popen)


def read(fd: int) -> bytes:
    """What is there now; empty at the end of the stream. Raises BlockingIOError where nothing is there yet."""
    return os.read(fd, _BLOCK)


def _when_the_parent_dies() -> Callable[[], None]:
    """Called in the child: SIGKILL for it when its parent is gone (prctl(2), PR_SET_PDEATHSIG)."""
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    return ask
