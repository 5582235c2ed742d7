"""Why a rank should stop: a flag that signal handlers and rank 0's watcher set, and that rides in the step's reduction.

Nothing here acts. All ranks learn of it in the same reduction and act at the end of that same step.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, get_args

from slurmtrain.clock import Clock
from slurmtrain.errors import OwnershipError
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.exitfile import StopReason
from slurmtrain.telemetry.stopfile import read_stop
from slurmtrain.train.ownership import check_owner

REASONS: tuple[StopReason, ...] = ("stop", "interrupt", "requeue")
"""First comes first when several were given: what a person asked for outweighs what Slurm does."""
SIGNALS: dict[signal.Signals, StopReason] = {
    signal.SIGUSR1: "requeue",
    signal.SIGUSR2: "requeue",
    signal.SIGTERM: "requeue",
    signal.SIGINT: "interrupt",
}
POLL_S = 0.5

assert set(REASONS) == set(get_args(StopReason)), REASONS


class StopFlag:
    """What has been asked of this rank so far. Setting it is all that a signal handler does."""

    def __init__(self) -> None:
        self.given: set[StopReason] = set()
        self.disowned = False

    def one_hot(self) -> list[float]:
        """1 for each of REASONS that was given, then 1 when the run has another owner: what is summed over the world."""
        return [float(reason in self.given) for reason in REASONS] + [float(self.disowned)]


def agreed(sums: Sequence[float]) -> StopReason | None:
    """The reason that all ranks act on, from the sums of `one_hot` over the world.

    >>> agreed([0.0, 0.0, 3.0]), agreed([1.0, 0.0, 3.0]), agreed([0.0, 0.0, 0.0])
    ('requeue', 'stop', None)
    """
    return next((reason for reason, count in zip(REASONS, sums, strict=True) if count > 0), None)


def install_handlers(flag: StopFlag) -> Callable[[], None]:
    """Let USR1, USR2, TERM and INT set the flag, and nothing else. Returns what puts the old handlers back."""

    def handler(number: int, _frame: FrameType | None) -> None:
        flag.given.add(SIGNALS[signal.Signals(number)])

    before: dict[signal.Signals, Any] = {number: signal.signal(number, handler) for number in SIGNALS}

    def restore() -> None:
        for number, old in before.items():
            signal.signal(number, old)

    return restore


class Watcher:
    """Rank 0's thread: looks for the supervisor's stop file and at owner.json, so that no step waits for the shared folder."""

    def __init__(self, run: RunDir, attempt: int, flag: StopFlag, clock: Clock, poll_s: float = POLL_S) -> None:
        self._run, self._attempt, self._flag, self._clock, self._poll_s = run, attempt, flag, clock, poll_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)

    def look(self) -> None:
        """One look."""
        reason = read_stop(self._run.attempt(self._attempt).stop)
        if reason is not None:
            self._flag.given.add(reason)
        try:
            check_owner(self._run, self._attempt)
        except OwnershipError:
            self._flag.disowned = True

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Stop looking."""
        self._ended.set()
        self._thread.join(timeout=self._poll_s + 5)

    def _watch(self) -> None:
        while not self._clock.wait(self._ended, self._poll_s):
            self.look()
