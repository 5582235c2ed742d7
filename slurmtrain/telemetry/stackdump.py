"""A rank says where it stands: on a signal, from C, whatever Python is doing, into a file of the node's memory.

The signal is SIGURG: a process that does not listen yet ignores it, where all others would kill it. What torch's flight recorder knows
needs Python: a thread of the rank waits at a pipe for whoever asks (`runtime/flight.py`).
"""

from __future__ import annotations

import faulthandler
import os
import signal
from contextlib import suppress
from pathlib import Path

STACK_SIGNAL = signal.SIGURG


def stack_dump(folder: Path, pid: int) -> Path:
    """The file of a process: each answer is appended."""
    return folder / f"stack-{pid}.txt"


def listen_for_stacks(folder: Path) -> None:
    """From now on STACK_SIGNAL appends the stacks of all threads to this process's file. Raises OSError."""
    # Left open: faulthandler writes into it when the signal comes.
    fd = os.open(stack_dump(folder, os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    faulthandler.register(STACK_SIGNAL, file=fd, all_threads=True)


def flight_pipe(folder: Path, pid: int) -> Path:
    """The pipe at which a process waits to be asked for its flight record."""
    return folder / f"flight-{pid}.pipe"


def flight_dump(folder: Path, pid: int) -> Path:
    """Its newest answer, JSON."""
    return folder / f"flight-{pid}.json"


def ask_for_flight(folder: Path, pid: int) -> bool:
    """Ask a process for its flight record; False where it keeps none. Never waits."""
    try:
        fd = os.open(flight_pipe(folder, pid), os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    with suppress(OSError):
        os.write(fd, b"?")
    os.close(fd)
    return True


def leave_no_trace(folder: Path, pid: int) -> None:
    """Remove what a process has here. Raises OSError."""
    for path in (stack_dump(folder, pid), flight_pipe(folder, pid), flight_dump(folder, pid)):
        path.unlink(missing_ok=True)
