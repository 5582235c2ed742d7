"""The one door to other programs: argv lists only, no shell, always a time limit for what is waited for.

`run` waits for a short command (squeue, git); `start` hands back a process that its caller polls (srun, mpiexec); `converse` one that
it speaks with besides.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import IO, Protocol

PIPE_BYTES = 1 << 20
UNSENT_BYTES = 4 << 20
"""What a program that does not read may leave unread before it is given up."""
PRINTED_BYTES = 64 << 20
"""What a command that is waited for may print on one of its outputs before it is killed: all of it is kept in memory."""
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

        A late command is killed with all that it started; what it had printed until then is kept. So is one that prints without end
        (PRINTED_BYTES): its code is -9, and what is kept is the beginning.
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


_LATE = "no answer"
_HELD = "it has ended, and what it started holds its output open after {timeout_s:g} s: let that write elsewhere"
_ENDLESS = f"it prints without end: killed after {PRINTED_BYTES >> 20} MiB"


class _Heard:
    """What a program says on both its outputs, up to PRINTED_BYTES each, while it is told what to read."""

    def __init__(self, popen: subprocess.Popen[bytes], told: bytes) -> None:
        assert popen.stdin is not None
        assert popen.stdout is not None
        assert popen.stderr is not None
        self._popen, self._told, self._in = popen, memoryview(told), popen.stdin
        self.printed = (bytearray(), bytearray())
        self._ends = dict(zip((popen.stdout, popen.stderr), self.printed, strict=True))

    def until(self, deadline: float) -> str:
        """Hear it to its end; why it was not waited for any longer, or nothing."""
        with selectors.DefaultSelector() as selector:
            for end in self._ends:
                selector.register(end, selectors.EVENT_READ, end)
            os.set_blocking(self._in.fileno(), False)
            selector.register(self._in, selectors.EVENT_WRITE, self._in)
            while selector.get_map():
                left = deadline - time.monotonic()
                if left <= 0:
                    return _LATE if self._popen.poll() is None else _HELD
                for key, _ in selector.select(left):
                    pipe: IO[bytes] = key.data
                    if not (self._tell() if pipe is self._in else self._hear(pipe)):
                        selector.unregister(pipe)
                        with contextlib.suppress(BrokenPipeError):
                            pipe.close()
                if any(len(one) > PRINTED_BYTES for one in self.printed):
                    return _ENDLESS
        try:
            self._popen.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return _LATE
        return ""

    def _hear(self, pipe: IO[bytes]) -> bool:
        """Whether there is more to hear."""
        part = os.read(pipe.fileno(), PIPE_BYTES)
        self._ends[pipe].extend(part)
        return bool(part)

    def _tell(self) -> bool:
        """Whether there is more to tell."""
        try:
            self._told = self._told[os.write(self._in.fileno(), self._told) :] if self._told else self._told
        except BrokenPipeError:
            return False
        return bool(self._told)


class SystemShell:
    """Programs of this machine."""

    def run(
        self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None, cwd: Path | None = None, stdin: str = ""
    ) -> Completed:
        args = tuple(argv)
        try:
            popen = subprocess.Popen(args, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=env, cwd=cwd, start_new_session=True)
        except OSError as error:
            return Completed(args, RC_NOT_FOUND, "", f"{error.filename or args[0]}: {error.strerror}")
        with popen:
            try:
                heard = _Heard(popen, stdin.encode(errors="replace"))
                why = heard.until(time.monotonic() + timeout_s)
                if why:
                    _kill_group(popen.pid)
            except BaseException:
                _kill_group(popen.pid)
                raise
        out, err = (_text(one[:PIPE_BYTES] if why == _ENDLESS else one) for one in heard.printed)
        if not why:
            return Completed(args, popen.returncode, out, err)
        said = f"no answer in {timeout_s:g} s" if why == _LATE else why.format(timeout_s=timeout_s)
        return Completed(args, -signal.SIGKILL if why == _ENDLESS else RC_TIMED_OUT, out, f"{err}{args[0]}: {said}")

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


def _text(printed: bytes | bytearray) -> str:
    return printed.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
