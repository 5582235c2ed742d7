"""When to stop so that the save is over before Slurm ends the job: a pure function, and the sentence for a limit that is too short."""

from __future__ import annotations

from collections.abc import Iterable

from slurmtrain.units import format_duration

MARGIN_S = 60.0
"""For writing records, ending the step and the requeue."""


def stop_at(end_time: float | None, saves: Iterable[float], step_s: float, *, margin_s: float = MARGIN_S) -> float | None:
    """The time (seconds since the epoch) to ask for a stop: the job's end minus twice the slowest save, one step and a minute.

    `saves`: seconds of the saves so far; `step_s`: of the slowest recent step. None: the job has no end that is known.
    """
    if end_time is None:
        return None
    return end_time - 2 * max(saves, default=0.0) - step_s - margin_s


def another_start_s(began: float, spoke: float | None, saves: Iterable[float], step_s: float) -> float:
    """Seconds that another start, a step and its save take, by the last start: from `began` to the first word of its ranks (None: none)."""
    return max(0.0, (spoke or began) - began) + 2 * max(saves, default=0.0) + step_s + MARGIN_S


def too_short(now: float, end_time: float | None, saves: Iterable[float], step_s: float) -> str | None:
    """One line when a start, a step and a save surely do not fit into what is left of the job's time; else None."""
    limit = stop_at(end_time, saves, step_s)
    if limit is None or end_time is None or limit > now:
        return None
    left, need = format_duration(max(0.0, end_time - now)), format_duration(end_time - limit)
    return f"the job ends in {left} but a step, two saves and a minute take {need}: it stops after its first step; give it a longer --time"
