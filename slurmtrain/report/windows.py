"""Where each attempt lies on the run's timeline, and what lay between two of them. Pure.

The time between an attempt and the next one, or now:

| the next one | time |
|---|---|
| in the same start of the same job | restart |
| the same job started again, or the next link of its array | requeue; restart until somebody asked for it, where that is known |
| another job, or without Slurm a person's new `run` | idle until that was submitted (and after a `cancel`), then pending |
| not there yet: a job was submitted since | idle until then, then pending |
| not there yet: the run's job waits | requeue |
| not there yet: the job runs | restart |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurmtrain.report.kinds import Kind
from slurmtrain.report.marks import Told, micro
from slurmtrain.resilience.records import AttemptRecord
from slurmtrain.telemetry.history import Act

BEGINS = frozenset({"submit", "run"})
"""Acts of a person who asks for a job."""
_TURNS: dict[str, Kind] = {"submit": "pending", "run": "pending", "cancel": "idle", "cancel failed": "pending"}
_LIFE = {*_TURNS, "start", "finish", "fail", "stopped", "requeue", "stopped for requeue"}


@dataclass(frozen=True)
class Story:
    """All that is known of a run. `now`: seconds since the epoch while it is not over, else None; `waits`: its job is not running."""

    attempts: Sequence[AttemptRecord] = ()
    acts: Sequence[Act] = ()
    told: Mapping[int, Told] = field(default_factory=dict)
    now: float | None = None
    waits: bool = False

    def told_by(self, attempt: int) -> Told:
        return self.told.get(attempt) or Told()


@dataclass(frozen=True)
class Window:
    """An attempt from its beginning to its end, in microseconds; windows follow one another and never overlap."""

    record: AttemptRecord
    start: int
    end: int


@dataclass(frozen=True)
class Gap:
    """Time between windows. `after`: the attempt that it follows, where it is that one's cost."""

    start: int
    end: int
    kind: Kind
    after: AttemptRecord | None = None


def windows(story: Story) -> list[Window]:
    """Of all attempts that have a record, by number. One without a word about its end ends with the newest of its events."""
    records = sorted(story.attempts, key=lambda one: one.attempt)
    found: list[Window] = []
    at = None
    for index, record in enumerate(records):
        start = micro(record.t_start) if at is None else max(at, micro(record.t_start))
        following = micro(records[index + 1].t_start) if index + 1 < len(records) else None
        at = max(start, _end(record, story, following))
        found.append(Window(record, start, at))
    return found


def _end(record: AttemptRecord, story: Story, following: int | None) -> int:
    newest = story.told_by(record.attempt).newest
    if record.outcome is not None and record.outcome.t_end > 0:
        end = micro(record.outcome.t_end)
    elif record.outcome is None and following is None and story.now is not None:
        end = micro(story.now)
    else:
        end = newest if newest is not None else micro(record.t_start)
    limits = [one for one in (following, None if story.now is None else micro(story.now)) if one is not None]
    return min([end, *limits])


def before(story: Story, until: int) -> list[Gap]:
    """The time before the first attempt: from the first time that a person asked for a job."""
    asked = [micro(act.t) for act in story.acts if act.what in BEGINS]
    begin = min([until, *asked])
    return _asked_for(story, begin - 1, begin, until) if begin < until else []


def between(story: Story, one: Window, other: Window) -> list[Gap]:
    """The time between two attempts, by the table above."""
    a, b = one.record, other.record
    if a.job_id and _array(a.job_id) == _array(b.job_id):
        same = (a.job_id, a.restart_count) == (b.job_id, b.restart_count)
        return _cut([Gap(one.end, other.start, "restart", a)] if same else _requeued(story, one, other))
    by_hand = any(act.what in BEGINS and one.start < micro(act.t) <= other.start for act in story.acts)
    if not a.job_id and not b.job_id and not by_hand:
        return _cut([Gap(one.end, other.start, "restart", a)])
    return _asked_for(story, one.start, one.end, other.start)


def _requeued(story: Story, one: Window, other: Window) -> list[Gap]:
    """Until somebody asked for the requeue (a deputy looks first) the job had its nodes."""
    asked = (micro(act.t) for act in story.acts if act.what == "requeue" and act.job_id == one.record.job_id)
    at = min((t for t in asked if one.end < t < other.start), default=one.end)
    return [Gap(one.end, at, "restart", one.record), Gap(at, other.start, "requeue", one.record)]


def after(story: Story, last: Window | None) -> list[Gap]:
    """The time behind the last attempt: until now, or until the last that was done about a run that is over."""
    life = [micro(act.t) for act in story.acts if act.what in _LIFE]
    asked = [micro(act.t) for act in story.acts if act.what in BEGINS and (last is None or micro(act.t) > last.start)]
    if last is None and not asked:
        return []
    since, begin = (last.start, last.end) if last is not None else (min(asked) - 1, min(asked))
    end = max([begin, *life]) if story.now is None else max(begin, micro(story.now))
    if asked or last is None:
        return _asked_for(story, since, begin, end)
    if story.now is None:
        return []
    return _cut([Gap(begin, end, "requeue" if story.waits else "restart", last.record)])


def _asked_for(story: Story, since: int, start: int, end: int) -> list[Gap]:
    """From start to end: pending from each submission to a cancel, idle otherwise, as far as anybody told.

    Submissions are looked for from `since` on: a job may have been asked for while the one before it still ran.
    """
    turns = sorted((micro(act.t), _TURNS[act.what]) for act in story.acts if act.what in _TURNS and since < micro(act.t) <= end)
    kind: Kind = "idle"
    gaps, at = [], start
    for t, turned in turns:
        begins = max(t, start)
        gaps.append(Gap(at, begins, kind))
        at, kind = begins, turned
    return _cut([*gaps, Gap(at, end, kind)])


def _cut(gaps: list[Gap]) -> list[Gap]:
    return [gap for gap in gaps if gap.start < gap.end]


def _array(job_id: str) -> str:
    return job_id.partition("_")[0]
