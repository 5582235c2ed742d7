"""Intervals -> figures: how much of a run's time, and of its GPU-hours, was training that stands; what its faults cost. Pure.

| figure | definition |
|---|---|
| ETTR | productive runtime / available wall-clock. Available: the run was scheduled, or could have been and waited in the queue. Productive: scheduled less what brought nothing, which is catching up from the last checkpoint and restarts. Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning Research Clusters" (arXiv 2410.21680) |
| ETTR without queue | the same by the scheduled time alone |
| scheduling goodput | share of the available time in which the resources were all there: scheduled / available |
| runtime goodput | share of that in which the run got on: productive / scheduled |
| program goodput | MFU of the productive steps, weighed by their time; null where no peak is known |
| ML productivity goodput | the product of the three (Google, "Introducing ML Productivity Goodput", April 2024; arXiv 2502.06982) |
| useful GPU-hours | productive / billed |
| MTTD | mean of (noticed - happened), of the faults for which both are known |
| MTTR | mean of (end of the first step after it, in whichever later attempt - happened; where that is not known, the attempt's end) |
| expected ETTR | (1 - N r (u + t/2)) / (1 + w/t), the formula of Kokolis et al. without queue: N r faults a day, u the time of a restart, t the training between two saves, w the stall of a save |

Ours is the strict side of these words: saves and evaluations are not productive, nor is anything before the first step. Time in which
nobody had asked for a job is not available; it is in the wall-clock, as `idle`. What Slurm takes from a job's start to the supervisor's own
counts as queue: only an accounting, which many sites lack, could tell them apart.
"""  # noqa: E501 a table

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slurmtrain.report.intervals import ROLLED_BACK, Interval, floors_of, lost_marks, timeline
from slurmtrain.report.kinds import PARTS, Kind, Part, part_of
from slurmtrain.report.marks import MICRO, micro
from slurmtrain.report.windows import Story, Window, windows
from slurmtrain.resilience.records import AttemptRecord
from slurmtrain.telemetry.causes import NOBODYS_FAULT

SPARES = "spares"
"""Of GPU time: what the job has and its world does not use."""
UNKNOWN = "unknown"
"""Cause of an end that nobody lived to record."""
_DAY_S = 86_400
_LAST = frozenset({"finished", "stopped", "cancelled"})
"""Ends after which nothing is to follow: the ending itself is no cost."""
_NO_FAULT = NOBODYS_FAULT | {"requeue"}
"""requeue: of earlier releases, a stop at a checkpoint that Slurm asked for."""


@dataclass
class CauseCost:
    """All ends by one cause (of `numerical`: ways back within an attempt, too).

    `lost_us`, `lost_gpu_us`: what they cost: work that is done again, detection, ending, restart or requeue, and
    the start-up after it; `restart_us`: of that what lies in the allocation and is not done again. `detect_us`, `repair_us`: of each end
    for which it is known.
    """

    ends: int = 0
    lost_us: int = 0
    lost_gpu_us: int = 0
    restart_us: int = 0
    detect_us: list[int] = field(default_factory=list)
    repair_us: list[int] = field(default_factory=list)

    @property
    def mttd_s(self) -> float | None:
        return _mean_s(self.detect_us)

    @property
    def mttr_s(self) -> float | None:
        return _mean_s(self.repair_us)


@dataclass(frozen=True)
class Accounts:
    """A run's accounts; times in microseconds, so that sums are exact. `detail_us` by kind; `gpu_us`: GPUs times time, by part and
    `spares`; `causes` by the cause of an attempt's end; `program`: MFU; `notes`: what is not known, in words.
    """

    begin_us: int
    end_us: int
    attempts: int
    detail_us: Mapping[Kind, int]
    gpu_us: Mapping[str, int]
    causes: Mapping[str, CauseCost]
    kept_steps: int
    redone_steps: int
    saves: int
    program: float | None
    notes: tuple[str, ...] = ()

    @property
    def wall_us(self) -> int:
        return self.end_us - self.begin_us

    @property
    def parts_us(self) -> dict[Part, int]:
        found: dict[Part, int] = dict.fromkeys(PARTS, 0)
        for kind, took in self.detail_us.items():
            found[part_of(kind)] += took
        return found

    @property
    def available_us(self) -> int:
        """Scheduled, or waiting in the queue."""
        return self.wall_us - self.detail_us.get("idle", 0)

    @property
    def scheduled_us(self) -> int:
        """The job had its nodes."""
        return self.available_us - self.parts_us["queue"]

    @property
    def billed_us(self) -> int:
        """All GPUs of the allocation times the time for which the job had them."""
        return sum(self.gpu_us.values())

    @property
    def faults(self) -> int:
        return sum(cost.ends for name, cost in self.causes.items() if is_fault(name))

    @property
    def ettr(self) -> float | None:
        return _share(self.parts_us["productive"], self.available_us)

    @property
    def ettr_without_queue(self) -> float | None:
        """Runtime goodput is the same."""
        return _share(self.parts_us["productive"], self.scheduled_us)

    @property
    def scheduling(self) -> float | None:
        return _share(self.scheduled_us, self.available_us)

    @property
    def ml_productivity(self) -> float | None:
        return None if self.program is None or self.ettr is None else self.ettr * self.program

    @property
    def useful_gpu_share(self) -> float | None:
        return _share(self.gpu_us.get("productive", 0), self.billed_us)

    @property
    def expected_ettr(self) -> float | None:
        """Without queue, of this run's own faults, restarts and saves; None before there were any."""
        productive = self.parts_us["productive"] / MICRO
        if not (self.faults and self.saves and productive):
            return None
        return expected_ettr(
            faults_per_day=self.faults * _DAY_S * MICRO / self.scheduled_us,
            restart_s=sum(cost.restart_us for name, cost in self.causes.items() if is_fault(name)) / MICRO / self.faults,
            stall_s=self.parts_us["checkpoint"] / MICRO / self.saves,
            interval_s=productive / self.saves,
        )


def expected_ettr(*, faults_per_day: float, restart_s: float, stall_s: float, interval_s: float) -> float:
    """The formula; 0 where faults leave nothing.

    >>> round(expected_ettr(faults_per_day=256 * 6.5e-3, restart_s=300, stall_s=300, interval_s=3600), 4)
    0.8858
    """
    lost = faults_per_day / _DAY_S * (restart_s + interval_s / 2)
    return max(0.0, 1 - lost) / (1 + stall_s / interval_s)


def accounts(story: Story) -> Accounts:
    """The accounts of a run. Raises ValueError for one that nobody has asked for."""
    placed = windows(story)
    causes = {ROLLED_BACK: "numerical", **{record.attempt: cause_name(record) for record in story.attempts}}
    sums = _Sums(causes)
    for interval in timeline(story):
        sums.take(interval)
    if sums.begin is None:
        raise ValueError("nobody has asked for a job")
    for window in placed:
        _count_end(sums.cost_of(window.record.attempt), window, story, placed)
    kept, redone = _steps(story)
    return Accounts(
        begin_us=sums.begin,
        end_us=sums.end,
        attempts=len(placed),
        detail_us=dict(sums.detail),
        gpu_us=dict(sums.gpu),
        causes={name: cost for name, cost in sorted(sums.costs.items()) if cost.ends or cost.lost_us},
        kept_steps=kept,
        redone_steps=redone,
        saves=sum(len(told.saves) for told in story.told.values()),
        program=sums.weighed / sums.weight if sums.weight else None,
        notes=tuple(_notes(story)),
    )


def cause_name(record: AttemptRecord) -> str:
    """Why an attempt ended, in one word; of earlier releases the kind of its end."""
    outcome = record.outcome
    return UNKNOWN if outcome is None else outcome.category or outcome.kind


def is_fault(cause: str) -> bool:
    """Not when all was done, or a person or Slurm wanted the end."""
    return cause not in _NO_FAULT


class _Sums:
    """Adds up intervals."""

    def __init__(self, causes: Mapping[int, str]) -> None:
        self._causes = causes
        self.begin: int | None = None
        self.end = 0
        self.detail: Counter[Kind] = Counter()
        self.gpu: Counter[str] = Counter()
        self.costs: dict[str, CauseCost] = {}
        self.weighed, self.weight = 0.0, 0

    def cost_of(self, attempt: int) -> CauseCost:
        return self.costs.setdefault(self._causes[attempt], CauseCost())

    def take(self, one: Interval) -> None:
        self.begin = one.start if self.begin is None else self.begin
        self.end = one.end
        self.detail[one.kind] += one.took
        if one.gpus or one.spares:
            self.gpu[part_of(one.kind)] += one.took * one.gpus
            self.gpu[SPARES] += one.took * one.spares
        if one.costs is not None and not (one.kind == "ending" and self._causes[one.costs] in _LAST):
            cost = self.cost_of(one.costs)
            cost.lost_us += one.took
            cost.lost_gpu_us += one.took * one.gpus
            cost.restart_us += one.took if one.kind not in {"redone", "requeue"} else 0
        if one.mfu is not None:
            self.weighed, self.weight = self.weighed + one.mfu * one.took, self.weight + one.took


def _count_end(cost: CauseCost, window: Window, story: Story, placed: Iterable[Window]) -> None:
    """An attempt's end, how long its fault went unnoticed, and when the run was training again."""
    outcome = window.record.outcome
    if outcome is None and window.record.attempt == max(one.record.attempt for one in placed) and story.now is not None:
        return  # it runs
    cost.ends += 1
    happened = outcome.fault_t if outcome is not None else None
    if outcome is not None and happened is not None and outcome.seen_t is not None:
        cost.detect_us.append(max(0, micro(outcome.seen_t) - micro(happened)))
    later = [told for number, told in sorted(story.told.items()) if number > window.record.attempt]
    again = next((mark.t for told in later for mark in told.steps()), None)
    if again is not None:
        cost.repair_us.append(max(0, again - (micro(happened) if happened is not None else window.end)))


def _steps(story: Story) -> tuple[int, int]:
    """How many steps stand, and how many were lost."""
    floors, kept, redone = floors_of(story), 0, 0
    for number in (record.attempt for record in story.attempts):
        told = story.told_by(number)
        lost = sum(told.marks[place].count for places in lost_marks(told, floors[number]) for place in places)
        redone += lost
        kept += sum(mark.count for mark in told.steps()) - lost
    return kept, redone


def _notes(story: Story) -> Iterable[str]:
    """What the records do not tell."""
    records = sorted(story.attempts, key=lambda one: one.attempt)
    for place, record in enumerate(records):
        told, outcome, last = story.told_by(record.attempt), record.outcome, place == len(records) - 1
        if outcome is None and not (last and story.now is not None):
            yield f"attempt {record.attempt} ended without a word: it counts up to the newest of its events"
        if outcome is not None and is_fault(cause_name(record)) and outcome.seen_t is None and told.marks:
            yield f"attempt {record.attempt}: when its fault happened and was noticed is not told: that time is in other"
        if told.up is not None and not told.stages:
            yield f"attempt {record.attempt}: its start-up is not told by stages"
    missing = sorted(set(story.told) - {record.attempt for record in records})
    if missing:
        yield f"no record of attempt {', '.join(map(str, missing))}: what it did is not counted"


def _mean_s(times: list[int]) -> float | None:
    return sum(times) / len(times) / MICRO if times else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole > 0 else None
