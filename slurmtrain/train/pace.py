"""`checkpoint.interval = "auto"`: how far apart saves are, from what they cost and how often the run fails (`planner.interval`). Rank 0's.

| what | from |
|---|---|
| stall | the mean of the newest saves, those of earlier attempts too; before the first the interval is FIRST_S, to learn it |
| failures, node-days | all attempts so far that a fault has ended, and the time of all nodes; beside them the site's rate |
| restart | from the start of this attempt until it can train |
| step | the median of the newest; saves come after a step, so the one that is nearest to the interval is taken |
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from statistics import fmean, median
from typing import Any

from slurmtrain.clock import Clock
from slurmtrain.config.stored import read_site
from slurmtrain.planner.interval import DAY_S, Advice, Seen, advise
from slurmtrain.resilience.records import AttemptRecord, Outcome, read_attempts
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.causes import NOBODYS_FAULT, Cause
from slurmtrain.telemetry.reader import parse_lines

FIRST_S = 600.0
TOLD_AGAIN = 0.1
"""A change of the interval by more than this share is told."""
_NEWEST_SAVES = 16
_NEWEST_STEPS = 20
_TAIL_BYTES = 16 << 20
_OF_A_SAVE = b'"kind":"save"'
_NO_WORK_LOST: frozenset[Cause] = NOBODYS_FAULT | {"configuration", "launch_failure", "prolog_failure"}


class Pace:
    """Says when the next save is due. `tell`: emits an event.

    `began`: node-seconds and failures of the attempts before; `stalls`: seconds of earlier saves, oldest first.
    """

    def __init__(
        self,
        *,
        nodes: int,
        site_rate: float,
        restart_s: float,
        before: Seen,
        stalls: Iterable[float],
        clock: Clock,
        tell: Callable[..., None],
    ) -> None:
        self._nodes, self._site_rate, self._restart_s, self._before = nodes, site_rate, restart_s, before
        self._clock, self._tell = clock, tell
        self._stalls: dict[int, float] = {-number: stall for number, stall in enumerate(reversed(list(stalls)), 1)}
        self._began = self._since = clock.monotonic()
        self._looked: float | None = None
        """When the step under way began."""
        self._steps: deque[float] = deque(maxlen=_NEWEST_STEPS)
        self._told: float | None = None
        self.seconds = FIRST_S

    def due(self) -> bool:
        """Called before each step: whether a save after it is nearer to the interval than one after the step that follows."""
        now = self._clock.monotonic()
        if self._told is None:
            self._work_out()
        self._step_ended(now)
        self._looked = now
        return now - self._since + 1.5 * self.step_s >= self.seconds

    @property
    def step_s(self) -> float:
        """Seconds of a step, its share of all that comes between steps included; 0: not known yet."""
        return median(self._steps) if self._steps else 0.0

    def saving(self) -> None:
        """After a step a save begins."""
        self._step_ended(self._clock.monotonic())

    def saved(self) -> None:
        """Training goes on: from here the time counts."""
        self._since = self._clock.monotonic()

    def _step_ended(self, now: float) -> None:
        if self._looked is not None:
            self._steps.append(now - self._looked)
        self._looked = None

    def learn(self, step: int, stall_s: float) -> None:
        """What the save of a step has cost; of one that went to two places the longer time."""
        self._stalls[step] = max(stall_s, self._stalls.pop(step, 0.0))
        while len(self._stalls) > _NEWEST_SAVES:
            del self._stalls[next(iter(self._stalls))]
        self._work_out()

    def _work_out(self) -> None:
        if not self._stalls:
            return
        node_days = self._nodes * (self._clock.monotonic() - self._began) / DAY_S
        seen = Seen(self._before.failures, self._before.node_days + node_days)
        stall = fmean(self._stalls.values())
        advice = advise(stall_s=stall, restart_s=self._restart_s, nodes=self._nodes, site_rate=self._site_rate, seen=seen)
        self.seconds = advice.seconds
        if self._told is None or abs(advice.seconds - self._told) > TOLD_AGAIN * self._told:
            self._told = advice.seconds
            self._tell("interval", **self._fields(advice))

    def _fields(self, advice: Advice) -> dict[str, Any]:
        return {**advice.to_fields(), "step_s": float(f"{self.step_s:.6g}")}


def seen_before(records: Iterable[AttemptRecord], attempt: int) -> Seen:
    """What the attempts before this one have met. One that nobody lived to close was ended by a fault; how long it took is not known."""
    failures, seconds = 0, 0.0
    for record in records:
        if record.attempt >= attempt:
            continue
        failures += _lost_work(record.outcome)
        seconds += _took(record) * len(record.nodes)
    return Seen(failures, seconds / DAY_S)


def _lost_work(outcome: Outcome | None) -> bool:
    if outcome is None:
        return True
    if outcome.category is not None:
        return outcome.category not in _NO_WORK_LOST
    return outcome.kind in ("failed", "node_failure")


def _took(record: AttemptRecord) -> float:
    """Seconds from the start of an attempt to its fault, or its end."""
    end = record.outcome and (record.outcome.fault_t or record.outcome.t_end)
    return max(0.0, end - record.t_start) if end else 0.0


def earlier_stalls(run: RunDir) -> list[float]:
    """Seconds that training stood still in the newest saves that rank 0 has told of, oldest first; as far as the end of its file goes."""
    try:
        with open(run.event_file(0), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            told = parse_lines(b"\n".join(line for line in file if _OF_A_SAVE in line))
    except OSError:
        return []
    by_save: dict[tuple[int, Any], float] = {}
    for event in told:
        if event.kind == "save" and isinstance(stall := event.fields.get("seconds"), (int, float)):
            key = event.attempt, event.fields.get("step")
            by_save[key] = max(float(stall), by_save.get(key, 0.0))
    return list(by_save.values())[-_NEWEST_SAVES:]


def make_pace(run: RunDir, attempt: int, *, nodes: int, clock: Clock, tell: Callable[..., None]) -> Pace:
    """The pace of an attempt that is about to train, from the files of the run. Raises ConfigError."""
    records, site = read_attempts(run), read_site(run.site_json).reliability
    began = next((record.t_start for record in records if record.attempt == attempt), None)
    took = clock.time() - began if began is not None else 0.0
    return Pace(
        nodes=nodes,
        site_rate=site.failures_per_node_day,
        restart_s=took if took > 0 else site.restart_s,
        before=seen_before(records, attempt),
        stalls=earlier_stalls(run),
        clock=clock,
        tell=tell,
    )
