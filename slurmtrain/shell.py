"""The one door to other programs: argv lists only, no shell, always a time limit for what is waited for.

`run` waits for a short command (squeue, git); `start` hands back a process that its caller polls (srun, mpiexec).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import Protocol

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


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _text(printed: bytes | str | None) -> str:
    """What TimeoutExpired holds: bytes even of a text stream."""
    return printed.decode(errors="replace") if isinstance(printed, bytes) else printed or ""
