"""Who calls a supervisor away while no rank runs: before the ranks are started, and in the pause between two attempts.

| who | what comes of it |
|---|---|
| STOP in the run folder, Ctrl-C | stopped: a person asked, nothing is started again |
| USR2, TERM | a requeue, as at the end of an attempt |
| the job's end is near (after the first attempt of a start alone: that one is always given a step) | a requeue |
"""

from __future__ import annotations

from slurmtrain.resilience.classify import Verdict
from slurmtrain.resilience.composition import Composition
from slurmtrain.resilience.deadline import stop_at
from slurmtrain.resilience.signals import INTERRUPT

PAUSE_POLL_S = 0.5


def called_away(c: Composition, *, again: bool) -> bool:
    """Whether anybody calls. `again`: this start of the job has made an attempt before."""
    return c.signals.any or c.run.stop.exists() or (again and time_is_up(c))


def time_is_up(c: Composition) -> bool:
    """Whether the job ends too soon for anything to be started in it."""
    limit = stop_at(c.allocation.look().end_time, [], 0.0)
    return limit is not None and c.clock.time() >= limit


def stopped_by(c: Composition, cause: str) -> Verdict:
    """The verdict on an attempt whose ranks were never started, because somebody called."""
    by_person = c.run.stop.exists() or c.signals.count(INTERRUPT) > 0
    return Verdict("stopped" if by_person else "requeue", cause)


def pause(c: Composition, seconds: float) -> None:
    """Wait until the next attempt is due, or somebody calls."""
    limit = c.clock.monotonic() + seconds
    while (left := limit - c.clock.monotonic()) > 0 and not called_away(c, again=True):
        c.clock.sleep(min(PAUSE_POLL_S, left))
