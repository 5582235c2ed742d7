"""The one door to other programs: argv lists only, no shell, always a time limit for what is waited for.

`run` waits for a short command (squeue, git); `start` hands back a process that its caller polls (srun, mpiexec).
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

RC_NOT_FOUND = 127
RC_TIMED_OUT = 124


@dataclass(frozen=True)
class Completed:
    """What a command left: exit code (127 not found, 124 ran past its limit, -N ended by signal N), stdout, stderr."""

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
        """Run to the end and give back what it printed; never raises for a failing, missing or late command."""

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdout: Path | None = None,
    ) -> Process:
        """Start in an own process group, stdout and stderr appended to the file `stdout` (None: inherited).

        Raises FileNotFoundError when there is no such program.
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
        try:
            os.killpg(self._popen.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


class SystemShell:
    """Programs of this machine."""

    def run(
        self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None, cwd: Path | None = None, stdin: str = ""
    ) -> Completed:
        args = tuple(argv)
        try:
            done = subprocess.run(
                args, input=stdin, capture_output=True, text=True, errors="replace", timeout=timeout_s, env=env, cwd=cwd, check=False
            )
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            return Completed(args, RC_NOT_FOUND, "", f"{args[0]}: {error.strerror}")
        except subprocess.TimeoutExpired:
            return Completed(args, RC_TIMED_OUT, "", f"{args[0]}: no answer in {timeout_s:.0f} s")
        return Completed(args, done.returncode, done.stdout, done.stderr)

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
