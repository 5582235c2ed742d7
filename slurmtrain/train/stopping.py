"""What is asked of the ranks: flags that signal handlers, rank 0's watcher and the loop set, and that ride in the step's reduction.

Nothing here acts. All ranks learn of it in the same reduction and act at the end of that same step: they stop together, save together,
and give a save up together.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, get_args

from slurmtrain.clock import Clock
from slurmtrain.errors import OwnershipError
from slurmtrain.resilience.ownership import check_owner
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.exitfile import StopReason
from slurmtrain.telemetry.stopfile import read_stop

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


@dataclass(frozen=True)
class Heard:
    """What all ranks know after a reduction. `stop`: leave; `disowned`: the run has another owner; `due`: it is time for a save;
    `request`: a person asks for one; `broken`: the save under way has failed on some rank.
    """

    stop: StopReason | None = None
    disowned: bool = False
    due: bool = False
    request: bool = False
    broken: bool = False


class StopFlag:
    """What has been asked of this rank so far. Setting `given` is all that a signal handler does.

    `due`: the loop's, that time is up for a save; `request`: the watcher's, which SAVE file it has seen; `served`: the loop's, the last
    one that a save was begun for; `broken`: the loop's, that a save has failed here. Each is set by one thread alone.
    """

    WIDTH = len(REASONS) + 4
    """Numbers of `one_hot`."""

    def __init__(self) -> None:
        self.given: set[StopReason] = set()
        self.disowned = False
        self.due = False
        self.request: int | None = None
        self.served: int | None = None
        self.broken = False

    @property
    def requested(self) -> bool:
        """Whether a person waits for a save that was not begun yet."""
        return self.request is not None and self.request != self.served

    def one_hot(self) -> list[float]:
        """1 for each of REASONS that was given, and for each field of `Heard` behind it: what is summed over the world."""
        asked = (self.disowned, self.due, self.requested, self.broken)
        return [*(float(reason in self.given) for reason in REASONS), *map(float, asked)]


def heard(sums: Sequence[float]) -> Heard:
    """What all ranks act on, from the sums of `one_hot` over the world.

    >>> heard([0.0, 0.0, 3.0, 0.0, 1.0, 0.0, 0.0]), heard([1.0, 0.0, 3.0, 2.0, 0.0, 0.0, 0.0]).stop, heard([0.0] * 7) == Heard()
    (Heard(stop='requeue', disowned=False, due=True, request=False, broken=False), 'stop', True)
    """
    *reasons, disowned, due, request, broken = sums
    stop = next((reason for reason, count in zip(REASONS, reasons, strict=True) if count > 0), None)
    return Heard(stop, disowned > 0, due > 0, request > 0, broken > 0)


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
    """Rank 0's thread: looks for the supervisor's stop file, a person's SAVE and at owner.json, so that no step waits for the shared
    folder.
    """

    def __init__(self, run: RunDir, attempt: int, flag: StopFlag, clock: Clock, poll_s: float = POLL_S) -> None:
        self._run, self._attempt, self._flag, self._clock, self._poll_s = run, attempt, flag, clock, poll_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)

    def look(self) -> None:
        """One look."""
        reason = read_stop(self._run.attempt(self._attempt).stop)
        if reason is not None:
            self._flag.given.add(reason)
        if (asked := save_request(self._run)) is not None:
            self._flag.request = asked
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


def save_request(run: RunDir) -> int | None:
    """Which SAVE file there is (its time in nanoseconds: touched again it is another); None where there is none."""
    try:
        return run.save_request.stat().st_mtime_ns
    except OSError:
        return None


def answer_request(run: RunDir, served: int) -> None:
    """Take the SAVE file away when its save has ended; one that was touched meanwhile asks for another save and stays."""
    if save_request(run) == served:
        with suppress(OSError):
            run.save_request.unlink()
