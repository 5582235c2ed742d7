"""Events, attempts and acts -> the run's timeline, cut into intervals of one kind each. Pure.

The intervals follow one another from the first submission to the end, or to now, and leave nothing out: what claims more than there is, or
what another has already, is cut, and what nothing claims is `other`. So they add up to the whole, whatever the records say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from slurmtrain.report.kinds import STAGES, STARTUP, Kind
from slurmtrain.report.marks import WAY_BACK, Mark, Told, micro
from slurmtrain.report.windows import Gap, Story, Window, after, before, between, windows
from slurmtrain.resilience.records import AttemptRecord, Outcome

ROLLED_BACK = 0
Claim = tuple[int, int, Kind]
"""From, to, and what it was; from may lie behind to, and before the end of the claim before it."""


@dataclass(frozen=True, slots=True)
class Interval:
    """From `start` to `end` (microseconds since the epoch). `owner`: the attempt that it lies in.

    `gpus`, `spares`: GPUs that the job has meanwhile, in the world and beside it; `costs`: the attempt whose end this time was lost by,
    where it was (ROLLED_BACK: by a way back within an attempt); `mfu`: of a step, where it is known.
    """

    start: int
    end: int
    kind: Kind
    owner: int | None = None
    gpus: int = 0
    spares: int = 0
    costs: int | None = None
    mfu: float | None = None

    @property
    def took(self) -> int:
        return self.end - self.start


def timeline(story: Story) -> Iterator[Interval]:
    """The intervals, in order; none for a run that nobody has asked for."""
    placed, floors, last = windows(story), floors_of(story), None
    for window in placed:
        gaps = before(story, window.start) if last is None else between(story, last, window)
        yield from map(_between, gaps)
        paid_by = gaps[-1].after.attempt if gaps and gaps[-1].after is not None else None
        if last is not None and not gaps and last.record.job_id == window.record.job_id:
            paid_by = last.record.attempt
        yield from _inside(window, story.told_by(window.record.attempt), floors[window.record.attempt], paid_by)
        last = window
    yield from map(_between, after(story, last))


def fill(claims: Iterable[Claim], start: int, end: int) -> Iterator[Claim]:
    """Exactly the time from start to end: claims as far as there is room for them, in their order, and `other` between them.

    >>> list(fill([(2, 5, "productive"), (4, 6, "checkpoint"), (9, 8, "ending"), (9, 99, "detection")], 0, 10))
    [(0, 2, 'other'), (2, 5, 'productive'), (5, 6, 'checkpoint'), (6, 9, 'other'), (9, 10, 'detection')]
    """
    at = start
    for begin, finish, kind in claims:
        first, last = min(max(begin, at), end), min(finish, end)
        if first < last:
            if at < first:
                yield at, first, "other"
            yield first, last, kind
            at = last
    if at < end:
        yield at, end, "other"


def floors_of(story: Story) -> dict[int, int | None]:
    """By attempt: the earliest step that a later attempt began from; what the attempt did beyond it was lost. None: nothing was."""
    floor: int | None = None
    found: dict[int, int | None] = {}
    for number in sorted({*(record.attempt for record in story.attempts), *story.told}, reverse=True):
        found[number] = floor
        began = story.told_by(number).began_from
        if began is not None:
            floor = began if floor is None else min(floor, began)
    return found


def lost_marks(told: Told, floor: int | None) -> tuple[set[int], set[int]]:
    """Places among the marks of steps that do not stand: beyond the floor; and trained again in the attempt itself."""
    beyond: set[int] = set()
    within: set[int] = set()
    again: int | None = None
    for place in range(len(told.marks) - 1, -1, -1):
        step = told.marks[place].step
        if step < 0:
            continue
        if again is not None and step >= again:
            within.add(place)
        elif floor is not None and step > floor:
            beyond.add(place)
        again = step if again is None else min(again, step)
    return beyond, within


def _between(gap: Gap) -> Interval:
    record = gap.after
    held = record is not None and gap.kind == "restart"
    gpus, spares = gpus_of(record) if held and record is not None else (0, 0)
    number = record.attempt if record is not None else None
    return Interval(gap.start, gap.end, gap.kind, number if held else None, gpus, spares, number)


def gpus_of(record: AttemptRecord) -> tuple[int, int]:
    """GPUs of the world, and of the allocation's other nodes, those included that were not to be used."""
    beside = {*record.spares, *record.passed_over} - set(record.nodes)
    return len(record.nodes) * record.tasks_per_node, len(beside) * record.tasks_per_node


def _inside(window: Window, told: Told, floor: int | None, paid_by: int | None) -> Iterator[Interval]:
    number, (gpus, spares) = window.record.attempt, gpus_of(window.record)
    speeds = {mark.t: mark.mfu for mark in told.marks if mark.mfu is not None}
    beyond, within = lost_marks(told, floor)
    back = {told.marks[place].t for place in within}
    claims = chain(_starting(window, told), _working(told, (beyond | within).__contains__), _ending(window, told))
    for start, end, kind in fill(claims, window.start, window.end):
        costs = paid_by if kind in STARTUP else number if kind in {"redone", "detection", "ending"} else None
        if kind == "restart" or (kind == "redone" and end in back):
            costs = ROLLED_BACK
        yield Interval(start, end, kind, number, gpus, spares, costs, speeds.get(end) if kind == "productive" else None)


def _starting(window: Window, told: Told) -> Iterator[Claim]:
    """From the beginning to the moment when rank 0 announces itself; of ranks that never did to the fault."""
    record, at = window.record, window.start
    known: Kind = "startup"
    done = record.t_ranks if record.t_ranks is not None else record.t_checked
    if done is not None:
        known, checked = "launch", micro(done)
        yield at, checked, "check"
        at = checked
    up = told.up if told.up is not None else _begin(told.marks[0], told.marks[0].t) if told.marks else None
    if up is None:
        yield at, _silent_until(record.outcome, window.end), known
        return
    stages = told.stages or ({"load": told.load} if told.load else {})
    born = up - sum(stages.values())
    yield at, born, known
    for stage in STAGES:
        yield born, born + stages.get(stage, 0), stage
        born += stages.get(stage, 0)


def _silent_until(outcome: Outcome | None, end: int) -> int:
    """When a start that brought no rank up was over: its fault, what was noticed of it, or the end."""
    told = (outcome.fault_t, outcome.seen_t) if outcome is not None else ()
    return next((micro(t) for t in told if t is not None), end)


def _working(told: Told, is_lost: Callable[[int], bool]) -> Iterator[Claim]:
    """Steps and evaluations; a save's stall lies behind the evaluations that follow its step. Before the first: building."""
    at, last = told.up, None
    for place, mark in enumerate(told.marks):
        begin = _begin(mark, at if at is not None else mark.t)
        if last is None and at is not None:
            begin = mark.t if mark.took is None else begin  # what the first took, and the start before it, cannot be told apart
            yield at, begin, "build"
        elif last is not None and mark.step >= 0:
            stall = mark.stall if mark.stall is not None else told.saves.get(last.step, 0)
            since = begin if at is None else at
            yield since, min(since + stall, begin), "checkpoint"  # a mean over ranks: never into the step, which rank 0 measured
        yield begin, mark.t, _kind(mark, lost=is_lost(place))
        at, last = mark.t, mark if mark.step >= 0 else last or mark
    if at is None:
        return
    if told.over is not None:
        yield at, told.over, "checkpoint" if last is not None else "build"  # nothing was trained that could be saved
    elif last is not None:
        yield at, at + told.saves.get(last.step, 0), "checkpoint"


def _kind(mark: Mark, *, lost: bool) -> Kind:
    if mark.step < 0:
        return "restart" if mark.step == WAY_BACK else "evaluation"
    return "redone" if lost else "productive"


def _begin(mark: Mark, at: int) -> int:
    """When a mark began; where it does not say what it took, when the one before it ended."""
    return at if mark.took is None else mark.t - mark.took


def _ending(window: Window, told: Told) -> Iterator[Claim]:
    """From the last that the ranks told to the end."""
    outcome = window.record.outcome
    if told.over is not None:
        yield told.over, window.end, "ending"
        return
    if outcome is None:
        return
    fault, seen = outcome.fault_t, outcome.seen_t
    if fault is not None:
        yield window.start, micro(fault), "redone" if told.marks else "build"
    if seen is not None:
        if fault is not None:
            yield micro(fault), micro(seen), "detection"
        yield micro(seen), window.end, "ending"
