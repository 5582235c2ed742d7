"""How many attempts a run may lose: budget.json, and the judgement on the next start. Pure, apart from reading and writing the file.

An attempt is charged once, when it has ended, to the cause of its end. A checkpoint newer than all before it makes everything free again,
and nothing else does: no requeue, no resubmission, no start by hand.

| cause | attempts that may end by it without a newer checkpoint | pause before the next |
|---|---|---|
| finished, stopped, cancelled | no next start is asked for | - |
| time_limit, preempted | any number | none |
| node_failure | 20 | none |
| silent_corruption | 5 | none |
| prolog_failure | any number: Slurm holds the job, and a person lets it go | - |
| hang, network, storage | 5 | grows |
| rank_crash, numerical, out_of_memory, launch_failure | 2 | grows |
| configuration | 0 | - |
| all together, silent_corruption and a preemption before the first step excepted | fewer than `no_progress` in a row | |

`recovery.budgets` replaces these numbers. A pause grows: none after the first, then backoff_s, doubled by each further one up to
backoff_max_s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from slurmtrain.atomic import Disk, to_json
from slurmtrain.config.keys import meant, near_words
from slurmtrain.config.recovery import RecoveryConfig
from slurmtrain.errors import ConfigError
from slurmtrain.resilience.records import AttemptRecord, Outcome
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.causes import CAUSES, NOBODYS_FAULT, Cause
from slurmtrain.units import counted

BUDGET_VERSION = 1
_SMALL, _MEDIUM, _LARGE = 2, 5, 20
DEFAULTS: Mapping[str, int] = {
    "node_failure": _LARGE,
    "hang": _MEDIUM,
    "network": _MEDIUM,
    "storage": _MEDIUM,
    "silent_corruption": _MEDIUM,
    "rank_crash": _SMALL,
    "numerical": _SMALL,
    "out_of_memory": _SMALL,
    "launch_failure": _SMALL,
    "configuration": 0,
}
"""Causes that are not in it are without limit."""
GROWING_PAUSE: frozenset[Cause] = frozenset({"hang", "network", "storage", "rank_crash", "numerical", "out_of_memory", "launch_failure"})
"""Causes that may come from the code, or from something that needs time."""
ENDS_THE_RUN: frozenset[Cause] = frozenset({"finished", "stopped", "cancelled"})


@dataclass(frozen=True)
class Spent:
    """What was lost since the newest durable checkpoint.

    `job_id`: the job (of an array, the whole of it) whose attempts `without_progress` counts; `attempt`: the newest that was charged;
    `durable_step`: the newest checkpoint so far; `by_cause`: attempts since then, by cause; `attempts`: which; `over`: why the run is not
    started again, where that was decided.
    """

    job_id: str = ""
    attempt: int = 0
    durable_step: int | None = None
    without_progress: int = 0
    by_cause: Mapping[str, int] = field(default_factory=dict)
    attempts: tuple[int, ...] = ()
    over: str = ""

    def to_json(self) -> bytes:
        return to_json({"v": BUDGET_VERSION, **asdict(self)})


@dataclass(frozen=True)
class Allowed:
    """The next start may come after so many seconds."""

    delay_s: float = 0.0


@dataclass(frozen=True)
class Exhausted:
    """There is no next start; one line of why."""

    why: str


def read_budget(run: RunDir) -> Spent:
    """What was spent; nothing where no file is, or none that can be read as one."""
    try:
        raw: dict[str, Any] = json.loads(run.budget_json.read_bytes())
        by_cause = {str(cause): int(n) for cause, n in raw.get("by_cause", {}).items()}
        step = raw.get("durable_step")
        return Spent(
            job_id=str(raw.get("job_id", "")),
            attempt=int(raw.get("attempt", 0)),
            durable_step=None if step is None else int(step),
            without_progress=int(raw.get("without_progress", 0)),
            by_cause=by_cause,
            attempts=tuple(map(int, raw.get("attempts", ()))),
            over=str(raw.get("over", "")),
        )
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return Spent()


def write_budget(run: RunDir, disk: Disk, spent: Spent) -> None:
    """Publish budget.json. Raises OSError."""
    disk.write(run.budget_json, spent.to_json())


def charge(spent: Spent, category: Cause, durable_step: int | None, *, progressed_first_step: bool, attempt: int = 0) -> Spent:
    """One more attempt that ended by `category`, when `durable_step` was the newest checkpoint. An attempt is charged once (0: no number).

    `progressed_first_step`: it had made a step.
    """
    if attempt and attempt <= spent.attempt:
        return spent
    number = max(attempt, spent.attempt)
    if _newer(durable_step, spent.durable_step):
        spent = replace(spent, durable_step=durable_step, without_progress=0, by_cause={}, attempts=())
        counts = False
    else:
        early = category == "preempted" and not progressed_first_step
        counts = category not in ENDS_THE_RUN and category != "silent_corruption" and not early
    return replace(
        spent,
        attempt=number,
        without_progress=spent.without_progress + counts,
        by_cause=spent.by_cause if category in NOBODYS_FAULT else {**spent.by_cause, category: spent.by_cause.get(category, 0) + 1},
        attempts=(*spent.attempts, number) if number else spent.attempts,
        over="",
    )


def judge(spent: Spent, category: Cause, recovery: RecoveryConfig) -> Allowed | Exhausted:
    """Whether the run may be started again after the attempt that was charged last."""
    lost, limit = spent.by_cause.get(category, 0), recovery.budgets.get(category, DEFAULTS.get(category))
    since = "" if spent.durable_step is None else f" since the checkpoint of step {spent.durable_step}"
    if limit is not None and lost > limit:
        return Exhausted(f"{counted(lost, 'attempt')} ended by {category.replace('_', ' ')}{since}; the budget allows {limit}")
    if spent.without_progress >= recovery.no_progress and category not in ENDS_THE_RUN:
        return Exhausted(f"{counted(spent.without_progress, 'attempt')} in a row brought no newer checkpoint")
    if category not in GROWING_PAUSE or lost < 2:
        return Allowed()
    return Allowed(min(recovery.backoff_max_s, recovery.backoff_s * 2.0 ** min(lost - 2, 60)))


def opened(spent: Spent, job_id: str, durable_step: int | None, records: Sequence[AttemptRecord]) -> Spent:
    """The budget when a supervisor starts: attempts of this job that nobody lived to charge are charged now.

    A new job (of an array: a new array) was begun by a person: its attempts without progress are counted from the checkpoint that is
    there now; what the causes have spent stays.
    """
    array = job_id.partition("_")[0]
    if array != spent.job_id or not array:
        newest = max((r.attempt for r in records), default=0)
        return replace(spent, job_id=array, attempt=newest, durable_step=durable_step, without_progress=0, over="")
    for record in sorted((r for r in records if r.attempt > spent.attempt), key=lambda r: r.attempt):
        ended = record.outcome
        spent = charge(
            spent,
            (ended.category if ended else None) or "node_failure",
            ended.last_durable_step if ended else durable_step,
            progressed_first_step=ended is None or made_a_step(ended),
            attempt=record.attempt,
        )
    return spent


def summary(records: Sequence[AttemptRecord], spent: Spent) -> list[str]:
    """What was tried since the newest checkpoint, one line an attempt: cause, node, step, words."""
    lines = []
    for record in records:
        if record.attempt not in spent.attempts:
            continue
        ended = record.outcome
        if ended is None:
            lines.append(f"attempt {record.attempt}: ended without a word")
            continue
        where = f" on {ended.node}" if ended.node else ""
        at = f" at step {ended.step}" if ended.step is not None else " before the first step"
        lines.append(f"attempt {record.attempt}: {(ended.category or ended.kind).replace('_', ' ')}{where}{at}: {ended.cause}")
    return lines


def made_a_step(outcome: Outcome) -> bool:
    """Whether an attempt came past the checkpoint that it began with, as far as it can be told from its end."""
    return (outcome.step or 0) > (outcome.last_durable_step or 0)


def in_words(spent: Spent, recovery: RecoveryConfig) -> str:
    """What was lost since the newest checkpoint, of what: for people; empty where nothing was.

    >>> in_words(Spent(without_progress=1, by_cause={"hang": 1}), RecoveryConfig())
    '1 of 3 attempts without a newer checkpoint; hang 1 of 5'
    """
    parts = [f"{spent.without_progress} of {recovery.no_progress} attempts without a newer checkpoint"] if spent.without_progress else []
    limits = {**DEFAULTS, **recovery.budgets}
    for cause, lost in sorted(spent.by_cause.items()):
        limit = limits.get(cause)
        parts.append(f"{cause.replace('_', ' ')} {lost}{'' if limit is None else f' of {limit}'}")
    return "; ".join(parts)


def over(spent: Spent, why: str) -> Spent:
    """The budget of a run that is not started again."""
    return replace(spent, over=why)


def check_budgets(recovery: RecoveryConfig, *, where: str) -> None:
    """Refuse names that are no causes, or causes after which nothing is started anyway. Raises ConfigError with near names."""
    names = [cause for cause in CAUSES if cause not in {*ENDS_THE_RUN, "prolog_failure"}]
    for name, value in recovery.budgets.items():
        if name not in names:
            said = meant(near_words(name, [*names])) or f": use {', '.join(names)}"
            problem = f"is no cause of an attempt's end that a budget is kept for{said}"
            raise ConfigError(problem, where=where, key=f"recovery.budgets.{name}", value=value)


def _newer(step: int | None, than: int | None) -> bool:
    return step is not None and (than is None or step > than)
