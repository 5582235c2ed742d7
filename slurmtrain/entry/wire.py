"""What a script says to the process beside it: JSON lines through a named pipe in node-local memory; nothing ever waits.

The pipe is named, not inherited: a script that is started by another program has none of its descriptors. A line is less than PIPE_BUF,
so that those of several processes never mix. Where the reader is late, or gone, a line is lost and training goes on.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurmtrain.telemetry.stackdump import listen_for_stacks
from slurmtrain.units import parse_step

PIPE_VARIABLE = "SLURMTRAIN_ENTRY_PIPE"
STOP_VARIABLE = "SLURMTRAIN_ENTRY_STOP"
RESUME_VARIABLE = "SLURMTRAIN_RESUME_FROM"
MOST_BYTES = 4096
"""PIPE_BUF of Linux (pipe(7)): writes up to it are whole."""
_said: set[int] = set()
_answers: set[int] = set()
"""Processes that have done it: a fork begins anew."""


def send(message: dict[str, Any]) -> None:
    """Say it, if somebody listens. Raises nothing."""
    path = os.environ.get(PIPE_VARIABLE)
    if not path:
        return
    with suppress(OSError, ValueError, TypeError):
        line = (json.dumps(message, separators=(",", ":"), default=_plain) + "\n").encode()
        if len(line) <= MOST_BYTES:
            _write(path, line)


def answer() -> None:
    """From now on this process says where it stands when it is asked (a hang): its stacks, as our own ranks do."""
    path = os.environ.get(PIPE_VARIABLE)
    if path and os.getpid() not in _answers:
        _answers.add(os.getpid())
        with suppress(OSError, ValueError, RuntimeError):
            listen_for_stacks(Path(path).parent)


def listen() -> None:
    """Say, once in this process, that the script asks for itself whether to stop."""
    if os.getpid() not in _said:
        _said.add(os.getpid())
        send({"listens": True})


def _write(path: str, line: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.write(fd, line)
    finally:
        os.close(fd)


def _plain(value: Any) -> Any:
    """A tensor's or an array's number, of those that have one."""
    return value.item() if hasattr(value, "item") else str(value)


@dataclass(frozen=True)
class Word:
    """One line of a script's. `durable`: path of a checkpoint that is complete; `listens`: the script asks whether to stop."""

    step: int | None = None
    phase: str = "step"
    metrics: dict[str, Any] = field(default_factory=dict)
    durable: Path | None = None
    listens: bool = False

    @classmethod
    def from_line(cls, line: str) -> Word | None:
        """None for what is no word."""
        try:
            raw = json.loads(line)
            step = None if raw.get("step") is None else _step(raw["step"])
            durable = Path(raw["durable"]) if raw.get("durable") else None
            return cls(step, str(raw.get("phase", "step")), dict(raw.get("metrics") or {}), durable, raw.get("listens") is True)
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            return None


def _step(raw: Any) -> int:
    """Raises ValueError for a number that no heartbeat holds; less than nothing is nothing."""
    step = max(0, int(raw))
    if parse_step(str(step)) is None:
        raise ValueError(f"{step} is no step")
    return step
