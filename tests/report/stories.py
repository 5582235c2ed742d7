"""Runs written by hand: what attempts, people and rank 0 would have left behind, by the second."""

from __future__ import annotations

from typing import Any

from slurmtrain.report.marks import tell
from slurmtrain.report.windows import Story
from slurmtrain.resilience.records import AttemptRecord, Outcome
from slurmtrain.telemetry.events import Event
from slurmtrain.telemetry.history import Act

T0 = 1_700_000_000.0
SECOND = 1_000_000


def at(seconds: float) -> float:
    return T0 + seconds


def act(t: float, what: str, job_id: str = "7") -> Act:
    return Act(at(t), "ada@login", what, job_id)


def attempt(number: int, t_start: float, t_end: float | None = None, *, restarts: int = 0, job: str = "7", **more: Any) -> AttemptRecord:
    """Of two nodes with four GPUs each. `t_end` None: no word of its end; `category`, `kind`, `fault`, `seen` are its outcome's."""
    said = {name: more.pop(name, None) for name in ("category", "kind", "fault", "seen")}
    outcome = None
    if t_end is not None:
        times = {f"{name}_t": at(said[name]) for name in ("fault", "seen") if said[name] is not None}
        outcome = Outcome(said["kind"] or "failed", "", t_end=at(t_end), category=said["category"], **times)
    times = {name: at(more.pop(name)) for name in ("t_checked", "t_ranks") if name in more}
    base = {"nodes": ("n1", "n2"), "spares": (), "tasks_per_node": 4, "world": 8}
    return AttemptRecord(number, job, restarts, at(t_start), **{**base, **more}, **times, outcome=outcome)


def event(number: int, t: float, kind: str, **fields: Any) -> Event:
    return Event(kind, at(t), number, 0, fields)


def start(number: int, t: float, resumed: int | None = None, **stages: float) -> Event:
    told = {"startup": {f"{name}_s": took for name, took in stages.items()}} if stages else {}
    return event(number, t, "start", world=8, resumed_from=resumed, **told)


def step(number: int, t: float, which: int, took: float = 10.0, *, stall: float | None = None, **more: Any) -> Event:
    previous = {} if stall is None else {"previous": {"step": which - 1, "checkpoint_s": stall}}
    return event(number, t, "step", step=which, step_s=took, **previous, **more)


def save(number: int, t: float, which: int, took: float) -> Event:
    return event(number, t, "save", step=which, seconds=took, bytes=64)


def evaluation(number: int, t: float, which: int, took: float) -> Event:
    return event(number, t, "eval", step=which, set="held-out", eval_loss=1.0, tokens=10, seconds=took)


EVENTS = [
    start(1, 84, python=6, mpi=2, group=1.5, build=4, load=0),
    step(1, 95, 1, mfu=0.4),
    step(1, 105.5, 2, mfu=0.4),
    save(1, 110, 2, 0.25),
    step(1, 115.75, 3, stall=0.25, mfu=0.4),
    step(1, 125.75, 4, mfu=0.4),
    evaluation(1, 128.75, 4, 3),
    step(1, 139, 5, stall=0.25, mfu=0.4),
    start(2, 176, 2, python=6, mpi=2, group=1, build=3, load=1),
    step(2, 186, 3, mfu=0.4),
    step(2, 196, 4, mfu=0.4),
    evaluation(2, 199, 4, 3),
    step(2, 209.25, 5, stall=0.25, mfu=0.4),
    save(2, 210, 4, 0.25),
    step(2, 219.25, 6, mfu=0.4),
    save(2, 221, 6, 1.75),
    event(2, 221, "stop", step=6, reason="requeue"),
    start(3, 357.5, 6, python=6, mpi=2, group=1, build=3, load=1),
    step(3, 367.5, 7, mfu=0.5),
    step(3, 377.5, 8, mfu=0.5),
    save(3, 379.5, 8, 2),
    event(3, 379.5, "finish", step=8),
]
ATTEMPTS = [
    attempt(1, 60, 151, spares=("n3",), t_checked=63, t_ranks=64, category="rank_crash", fault=146, seen=148),
    attempt(2, 161, 222.5, nodes=("n1", "n3"), spares=("n2",), t_checked=161.5, t_ranks=162, category="time_limit", kind="requeue"),
    attempt(3, 342.5, 380, restarts=1, nodes=("n4", "n5"), t_checked=343, t_ranks=343.5, category="finished", kind="finished"),
]
ACTS = [act(0, "submit"), act(60, "start"), act(222.5, "requeue"), act(342.5, "start"), act(380, "finish")]


def story(events: list[Event] | None = None, **changes: Any) -> Story:
    """A crash in place with steps trained again, asynchronous saves, an evaluation, a requeue at the time limit, and the end."""
    told = tell(EVENTS if events is None else events)
    return Story(**{"attempts": ATTEMPTS, "acts": ACTS, "told": told, **changes})
