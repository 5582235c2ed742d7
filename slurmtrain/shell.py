"""The one door to other programs: argv lists only, no shell, always a time limit for what is waited for.

`run` waits for a short command (squeue, git); `start` hands back a process that its caller polls (srun, mpiexec); `converse` one that
it speaks with besides.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import Protocol

PIPE_BYTES = 1 << 20
UNSENT_BYTES = 4 << 20
"""What a program that does not read may leave unread before it is given up."""
RC_NOT_FOUND = 127
RC_TIMED_OUT = 124


@dataclass(frozen=True)
class Completed:
    """What a command left: exit code (127 could not be started, 124 ran past its limit, -N ended by signal N), stdout, stderr."""

    argv: tuple[str, ...]
    rc: int
    out: str
    err: str

    @property
    def ok(self) -> bool:
        return self.rc == 0


class Process(Protocol):
    """A program that runs."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for the end; None when the limit came first."""

    def signal(self, signum: int) -> None:
        """Send a signal to the program alone; nothing happens when it has ended."""

    def kill_group(self) -> None:
        """SIGKILL to the program and all that it started (its process group)."""


class Talk(Process, Protocol):
    """A program that runs, and that one speaks with. Nothing here waits for it."""

    def say(self, text: str) -> bool:
        """Into its standard input, now or as soon as it reads; False when it does not take any more."""

    def heard(self) -> str:
        """What it has printed on standard output since the last call."""

    def hang_up(self) -> None:
        """End its standard input; what it has not taken so far is lost."""

    def close(self) -> None:
        """Nobody speaks with it any more."""


class Shell(Protocol):
    """Runs programs."""

    def run(
        self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None, cwd: Path | None = None, stdin: str = ""
    ) -> Completed:
        """Run to the end and give back what it printed; never raises for a failing, missing or late command.

        A late command is killed with all that it started; what it had printed until then is kept.
        """

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdout: Path | None = None,
    ) -> Process:
        """Start in an own process group, stdout and stderr appended to the file `stdout` (None: inherited).

        Raises FileNotFoundError when there is no such program, another OSError when it or `stdout` cannot be used.
        """

    def converse(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, stderr: Path | None = None
    ) -> Talk:
        """As `start`, with a pipe at both its standard input and output; stderr is appended to the file `stderr`."""


class _SystemProcess:
    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen

    @property
    def pid(self) -> int:
        return self._popen.pid

    def poll(self) -> int | None:
        return self._popen.poll()

    def wait(self, timeout_s: float | None = None) -> int | None:
        try:
            return self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, signum: int) -> None:
        self._popen.send_signal(signum)

    def kill_group(self) -> None:
        _kill_group(self._popen.pid)


class _SystemTalk(_SystemProcess):
    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        super().__init__(popen)
        assert popen.stdin is not None
        assert popen.stdout is not None
        self._in, self._out, self._unsent = popen.stdin, popen.stdout, b""
        for pipe in (self._in, self._out):
            os.set_blocking(pipe.fileno(), False)
            with contextlib.suppress(OSError):  # beyond this user's share of memory for pipes
                fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def say(self, text: str) -> bool:
        if self._in.closed or len(self._unsent) > UNSENT_BYTES:
            return False
        self._unsent += text.encode()
        return self._send()

    def _send(self) -> bool:
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._in.fileno(), self._unsent) :]
        except BlockingIOError:
            return True
        except OSError:
            self.hang_up()
            return False
        return True

    def heard(self) -> str:
        if not self._in.closed:
            self._send()
        parts = []
        with contextlib.suppress(BlockingIOError):
            while not self._out.closed:
                if part := os.read(self._out.fileno(), PIPE_BYTES):
                    parts.append(part)
                else:
                    self._out.close()
        return b"".join(parts).decode(errors="replace")

    def close(self) -> None:
        self.hang_up()
        self._out.close()

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._in.close()


class SystemShell:
    """Programs of this machine."""

    def run(
        self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None, cwd: Path | None = None, stdin: str = ""
    ) -> Completed:
        args = tuple(argv)
        try:
            popen = subprocess.Popen(
                args, stdin=PIPE, stdout=PIPE, stderr=PIPE, encoding="utf-8", errors="replace", env=env, cwd=cwd, start_new_session=True
            )
        except OSError as error:
            return Completed(args, RC_NOT_FOUND, "", f"{error.filename or args[0]}: {error.strerror}")
        with popen:
            try:
                out, err = popen.communicate(stdin, timeout=timeout_s)
            except subprocess.TimeoutExpired as late:
                _kill_group(popen.pid)
                return Completed(args, RC_TIMED_OUT, _text(late.stdout), f"{_text(late.stderr)}{args[0]}: no answer in {timeout_s:g} s")
            except BaseException:
                _kill_group(popen.pid)
                raise
        return Completed(args, popen.returncode, out, err)

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdout: Path | None = None,
    ) -> Process:
        sink = None if stdout is None else open(stdout, "ab")  # noqa: SIM115 closed below, after the child has it
        try:
            popen = subprocess.Popen(
                list(argv), stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=env, cwd=cwd, start_new_session=True
            )
        finally:
            if sink is not None:
                sink.close()
        return _SystemProcess(popen)

    def converse(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, stderr: Path | None = None
    ) -> Talk:
        sink = None if stderr is None else open(stderr, "ab")  # noqa: SIM115 as above
        try:
            popen = subprocess.Popen(list(argv), bufsize=0, stdin=PIPE, stdout=PIPE, stderr=sink, env=env, cwd=cwd, start_new_session=True)
        finally:
            if sink is not None:
                sink.close()
        return _SystemTalk(popen)


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _text(printed: bytes | str | None) -> str:
    """What TimeoutExpired holds: bytes even of a text stream."""
    return printed.decode(errors="replace") if isinstance(printed, bytes) else printed or ""
