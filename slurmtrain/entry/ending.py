"""How a script left, as the record of its rank. Pure.

| it left | a stop was asked | record |
|---|---|---|
| with 0 | no | finished |
| with 0 | yes | stopped |
| by the signal that was passed on (or with 128 + its number, as shells say it) | yes | stopped |
| by a signal that came to this rank from outside and was passed on | no | error: a lost peer's, or the launcher is ending the step |
| with another code, or by another signal | no matter | error: its exception's last line, else its last; a lost peer's is marked |
| it was never started: called away before | yes | stopped |
| it was never started: called away before | no | error: a lost peer's |
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from slurmtrain.errors import EXIT_FAULT, EXIT_OK, one_line
from slurmtrain.telemetry.exitfile import PEER_LOST, ExitKind, StopReason, is_follower, peer_lost

SHELL_SIGNAL = 128
"""bash's manual, "Exit status": a command that a signal ends has the status 128 + its number."""


@dataclass(frozen=True)
class Left:
    """`code`: as Python has it, -9 for SIGKILL; None: never started. `passed`: signals that were passed on to the script.

    `said`: the line that its exception ended with; `last`: the last line on its stderr.
    """

    code: int | None
    asked: StopReason | None
    passed: frozenset[int]
    said: str = ""
    last: str = ""


@dataclass(frozen=True)
class Ending:
    """Kind, exit code and words of the record."""

    kind: ExitKind
    code: int
    error: str = ""


def ending_of(left: Left) -> Ending:
    """The table above."""
    number = None if left.code is None else _signal_of(left.code)
    by_order = left.code is None or (number is not None and number in left.passed)
    if left.asked is not None and (left.code == 0 or by_order):
        return Ending("stopped", EXIT_OK, left.asked)
    if left.code == 0:
        return Ending("finished", EXIT_OK)
    if by_order:
        how = "called away before the script was started" if number is None else f"ended by {_name(number)} from outside"
        return Ending("error", EXIT_FAULT, f"{PEER_LOST}{how}")
    words = _words(left, number)
    code = left.code if left.code is not None and 0 < left.code < 256 else EXIT_FAULT
    return Ending("error", code, one_line(peer_lost(words) if is_follower(left.said) else words))


def _words(left: Left, number: int | None) -> str:
    how = f"code {left.code}" if number is None else _name(number)
    if left.said:
        return f"{left.said} ({how})"
    return f"the script ended: {how}" + (f"; the last line of its errors: {left.last}" if left.last else "")


def _signal_of(code: int) -> int | None:
    """The number of the signal that an exit code tells of; None where it tells of none."""
    number = -code if code < 0 else code - SHELL_SIGNAL
    return number if code < 0 or (code > SHELL_SIGNAL and number in set(signal.Signals)) else None


def _name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
