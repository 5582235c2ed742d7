"""What a drill has shown: attempts and events -> one row, and whether it is what should come of it. Pure.

| figure | from |
|---|---|
| detected | the category of the first attempt that did not finish; without one the first event of skip, straggler, save_failed |
| time to detect | noticed - happened: when the drill struck, where it knows, else the newest sign of life before (the outcome's) |
| time to the first new step | end of the first step of any later attempt - happened |
| cold start | end of the first attempt's first step - its beginning |
| steps lost | trained again |
| loss | of every step that both tell of, the last one's included, compared with an undisturbed run, bit for bit |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from slurmtrain.report.intervals import floors_of, lost_marks
from slurmtrain.report.marks import tell
from slurmtrain.report.windows import Story
from slurmtrain.resilience.drills import Kind, Went
from slurmtrain.resilience.records import AttemptRecord
from slurmtrain.telemetry.events import Event
from slurmtrain.telemetry.reader import steps

_TELLING = ("skip", "straggler", "save_failed")
_NOTED = (*_TELLING, "aside", "corruption", "rollback")


@dataclass(frozen=True)
class Drilled:
    """What a drill left. `state`: of the run, when it was over or nobody waited any longer; `struck_t`: when the fault happened;
    `reference`: events of an undisturbed run; `left`: processes that were left behind, `drained`: nodes; None: not known.
    """

    kind: Kind
    attempts: Sequence[AttemptRecord]
    events: Sequence[Event]
    state: str
    struck_t: float | None = None
    reference: Sequence[Event] | None = None
    left: int | None = None
    drained: Sequence[str] | None = None
    held: bool = False
    category: str | None = None
    """As `status` has it: of a job that never came to an attempt."""


@dataclass(frozen=True)
class Row:
    """A line of the table; times in seconds. `why`: what is not as it should be, empty when `ok`."""

    kind: str
    ok: bool
    detected: str
    went: str
    detect_s: float | None
    first_step_s: float | None
    cold_start_s: float | None
    steps_lost: int
    attempts: int
    starts: int
    state: str
    loss_equal: bool | None
    left: int | None
    drained: tuple[str, ...] | None
    noted: tuple[str, ...] = ()
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"v": 1, **asdict(self)}


def row_of(told: Drilled) -> Row:
    """The row."""
    records = sorted(told.attempts, key=lambda one: one.attempt)
    faulty = next((one for one in records if one.outcome is not None and one.outcome.category != "finished"), None)
    happened = told.struck_t if told.struck_t is not None else _fault_t(faulty)
    noted = tuple(dict.fromkeys(event.kind for event in told.events if event.kind in _NOTED))
    detected = _detected(faulty, noted, told.category)
    equal = None if told.reference is None else same_losses(told.events, told.reference)
    row = Row(
        kind=told.kind.name,
        ok=False,
        detected=detected,
        went=went(told, records),
        detect_s=_detect_s(faulty, happened),
        first_step_s=_first_step_s(told.events, faulty, happened),
        cold_start_s=_cold_start_s(told.events, records),
        steps_lost=_lost(told, records),
        attempts=len(records),
        starts=len({(one.job_id, one.restart_count) for one in records}),
        state=told.state,
        loss_equal=equal,
        left=told.left,
        drained=None if told.drained is None else tuple(told.drained),
        noted=noted,
    )
    why = "; ".join(faults_of(row, told.kind))
    return Row(**{**row.__dict__, "ok": not why, "why": why})


def nothing(kind: str, why: str) -> Row:
    """Of a drill that came to nothing."""
    unknown: dict[str, Any] = dict.fromkeys(("detect_s", "first_step_s", "cold_start_s", "loss_equal", "left", "drained"))
    return Row(kind=kind, ok=False, detected="-", went="-", steps_lost=0, attempts=0, starts=0, state="-", why=why, **unknown)


def went(told: Drilled, records: Sequence[AttemptRecord]) -> Went:
    """How the run got over it."""
    if told.held:
        return "held"
    if told.state != "FINISHED":
        return "ended"
    if len(records) < 2:
        return "went on"
    return "in place" if len({(one.job_id, one.restart_count) for one in records}) == 1 else "requeue"


def faults_of(row: Row, kind: Kind) -> list[str]:
    """What is not as it should be, one phrase each."""
    found = []
    if row.detected not in kind.seen:
        found.append(f"called {row.detected}, not {' or '.join(kind.seen)}")
    if row.went not in kind.went:
        found.append(f"{row.went} ({row.state}), not {' or '.join(kind.went)}")
    if kind.same_loss and row.loss_equal is False and row.went not in {"ended", "held"}:
        found.append("another loss than without the fault")
    if row.left:
        found.append(f"{row.left} processes left behind")
    if row.drained and "held" not in kind.went:
        found.append(f"drained: {' '.join(row.drained)}")
    return found


def same_losses(events: Sequence[Event], reference: Sequence[Event]) -> bool:
    """Whether both came to the same last step, and the loss of every step that both tell of has the same bits.

    A step may have gone untold: while a disk is full no event is written.
    """
    mine, other = _losses(events), _losses(reference)
    return bool(mine and other) and max(mine) == max(other) and all(mine[step] == other[step] for step in mine.keys() & other.keys())


def _losses(events: Sequence[Event]) -> Mapping[int, Any]:
    return {step: event.fields.get("loss") for step, event in steps(events).items()}


def _detected(faulty: AttemptRecord | None, noted: Sequence[str], category: str | None) -> str:
    if faulty is not None and faulty.outcome is not None:
        return faulty.outcome.category or faulty.outcome.kind
    told = category if category != "finished" else None
    return next((one for one in noted if one in _TELLING), told or "nothing")


def _fault_t(faulty: AttemptRecord | None) -> float | None:
    return faulty.outcome.fault_t if faulty is not None and faulty.outcome is not None else None


def _detect_s(faulty: AttemptRecord | None, happened: float | None) -> float | None:
    seen = faulty.outcome.seen_t if faulty is not None and faulty.outcome is not None else None
    return None if seen is None or happened is None else round(max(0.0, seen - happened), 3)


def _first_step_s(events: Sequence[Event], faulty: AttemptRecord | None, happened: float | None) -> float | None:
    if faulty is None or happened is None:
        return None
    later = [event.t for event in events if event.kind == "step" and event.attempt > faulty.attempt]
    return round(min(later) - happened, 3) if later else None


def _cold_start_s(events: Sequence[Event], records: Sequence[AttemptRecord]) -> float | None:
    if not records:
        return None
    made = [event.t for event in events if event.kind == "step" and event.attempt == records[0].attempt]
    return round(min(made) - records[0].t_start, 3) if made else None


def _lost(told: Drilled, records: Sequence[AttemptRecord]) -> int:
    story = Story(records, (), tell(event for event in told.events if event.rank == 0 and event.kind != "straggler"))
    floors, lost = floors_of(story), 0
    for number in (one.attempt for one in records):
        one = story.told_by(number)
        lost += sum(one.marks[place].count for places in lost_marks(one, floors[number]) for place in places)
    return lost


def seconds(value: float | None) -> str:
    """For people.

    >>> seconds(None), seconds(1.26)
    ('-', '1.3 s')
    """
    return "-" if value is None else f"{value:.1f} s"


def words(row: Row) -> list[tuple[str, str]]:
    """(label, text) for people."""
    equal = {None: "not compared (--reference RUN)", True: "bit for bit that of the reference", False: "NOT that of the reference"}
    left = "not known" if row.left is None else str(row.left)
    drained = "not known" if row.drained is None else " ".join(row.drained) or "none"
    cold = f" (the first start took {seconds(row.cold_start_s)})" if row.cold_start_s is not None else ""
    return [
        ("drill", f"{row.kind}: {'ok' if row.ok else f'NOT OK: {row.why}'}"),
        ("detected", f"as {row.detected.replace('_', ' ')}{f', after {seconds(row.detect_s)}' if row.detect_s is not None else ''}"),
        ("went", f"{row.went}, {row.state}; attempts {row.attempts}, starts of the job {row.starts}"),
        ("new step", f"after {seconds(row.first_step_s)}{cold}"),
        ("steps", f"{row.steps_lost} lost"),
        ("loss", equal[row.loss_equal]),
        ("left", f"processes {left}, drained nodes {drained}"),
    ]
