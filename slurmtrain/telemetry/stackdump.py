"""A rank says where it stands: on a signal, from C, whatever Python is doing, into a file of the node's memory.

The signal is SIGURG: a process that does not listen yet ignores it, where all others would kill it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path

STACK_SIGNAL = signal.SIGURG


def stack_dump(folder: Path, pid: int) -> Path:
    """The file of a process: each answer is appended."""
    return folder / f"stack-{pid}.txt"


def listen_for_stacks(folder: Path) -> None:
    """From now on STACK_SIGNAL appends the stacks of all threads to this process's file. Raises OSError."""
    # Left open: faulthandler writes into it when the signal comes.
    faulthandler.register(STACK_SIGNAL, file=open(stack_dump(folder, os.getpid()), "ab"), all_threads=True)  # noqa: SIM115
