"""The timeline of any history is a partition of the time from its beginning to its end; what lies between attempts, by its table."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmtrain.report.goodput import accounts
from slurmtrain.report.intervals import fill, timeline
from slurmtrain.report.kinds import KINDS, PARTS, part_of
from slurmtrain.report.marks import read_lines, tell
from slurmtrain.report.windows import Story, windows
from slurmtrain.resilience.records import AttemptRecord, Outcome
from slurmtrain.telemetry.causes import CAUSES
from slurmtrain.telemetry.events import Event
from slurmtrain.telemetry.history import Act
from tests.report.stories import SECOND, act, at, attempt, event, start, step

# Any time at all: clocks of other hosts run before and behind, and some files hold nonsense.
TIMES = st.one_of(st.floats(0, 1000), st.floats(-1e4, 1e4))
LENGTHS = st.one_of(st.none(), st.floats(0, 100), st.floats(-1e6, 1e6), st.sampled_from(["nan", True, 7]))
OUTCOMES = st.builds(
    Outcome,
    kind=st.sampled_from(["finished", "stopped", "requeue", "failed", "node_failure"]),
    cause=st.just(""),
    t_end=TIMES,
    category=st.none() | st.sampled_from(CAUSES),
    fault_t=st.none() | TIMES,
    seen_t=st.none() | TIMES,
)
RECORDS = st.builds(
    AttemptRecord,
    attempt=st.just(0),
    job_id=st.sampled_from(["", "7", "8_1", "8_2"]),
    restart_count=st.integers(0, 2),
    t_start=TIMES,
    nodes=st.sampled_from([("n1",), ("n1", "n2")]),
    spares=st.sampled_from([(), ("n3",)]),
    tasks_per_node=st.sampled_from([1, 4]),
    world=st.just(4),
    outcome=st.none() | OUTCOMES,
    t_checked=st.none() | TIMES,
    t_ranks=st.none() | TIMES,
)
FIELDS = {
    "start": st.fixed_dictionaries(
        {},
        optional={
            "resumed_from": st.none() | st.integers(0, 9),
            "startup": st.fixed_dictionaries({"python_s": LENGTHS, "load_s": LENGTHS}),
        },
    ),
    "step": st.fixed_dictionaries(
        {"step": st.integers(1, 9), "step_s": LENGTHS},
        optional={"count": st.integers(-1, 5), "previous": st.fixed_dictionaries({"checkpoint_s": LENGTHS})},
    ),
    "eval": st.fixed_dictionaries({"seconds": LENGTHS}),
    "save": st.fixed_dictionaries({"step": st.integers(1, 9), "seconds": LENGTHS}),
    "load": st.fixed_dictionaries({"seconds": LENGTHS}),
    "rollback": st.fixed_dictionaries({"seconds": LENGTHS}),
    "stop": st.fixed_dictionaries({"step": st.integers(1, 9)}),
}
EVENTS = st.sampled_from(sorted(FIELDS)).flatmap(
    lambda kind: st.builds(Event, st.just(kind), TIMES, attempt=st.integers(1, 4), rank=st.just(0), fields=FIELDS[kind])
)
ACTS = st.builds(
    Act,
    TIMES,
    st.just("ada@login"),
    st.sampled_from(["submit", "run", "cancel", "cancel failed", "start", "requeue", "finish", "verify"]),
    st.sampled_from(["", "7"]),
)


@st.composite
def stories(draw):
    records = [AttemptRecord(**{**one.__dict__, "attempt": n}) for n, one in enumerate(draw(st.lists(RECORDS, max_size=4)), start=1)]
    now = draw(st.none() | TIMES)
    return Story(records, draw(st.lists(ACTS, max_size=6)), tell(draw(st.lists(EVENTS, max_size=25))), now, draw(st.booleans()))


@settings(max_examples=100, deadline=None)
@given(stories())
def test_any_history_is_cut_into_parts_that_add_up_to_the_whole(history):
    cut = list(timeline(history))
    assert all(isinstance(one.start, int) and one.start < one.end for one in cut)
    assert all(one.end == other.start for one, other in pairwise(cut)), "no gap, no overlap"
    if not cut:
        with pytest.raises(ValueError, match="nobody has asked"):
            accounts(history)
        return
    told = accounts(history)
    assert (told.begin_us, told.end_us) == (cut[0].start, cut[-1].end)
    assert sum(told.parts_us.values()) == sum(told.detail_us.values()) == told.wall_us
    assert all(took >= 0 for took in (*told.detail_us.values(), *told.gpu_us.values(), *told.parts_us.values()))
    assert told.billed_us == sum(one.took * (one.gpus + one.spares) for one in cut)
    steps = sum(mark.count for record in history.attempts for mark in history.told_by(record.attempt).steps())
    assert told.kept_steps + told.redone_steps == steps
    assert 0 <= (told.ettr or 0) <= (told.ettr_without_queue or 0) + 1e-9 <= 1 + 1e-9
    for window in windows(history):
        inside = [one for one in cut if window.start <= one.start and one.end <= window.end and one.owner == window.record.attempt]
        assert sum(one.took for one in inside) == window.end - window.start


CLAIMS = st.lists(st.tuples(st.integers(-5, 25), st.integers(-5, 25), st.sampled_from(KINDS)), max_size=8)


@given(CLAIMS, st.integers(0, 10), st.integers(0, 10))
def test_claims_fill_exactly_what_there_is(claims, start_, length):
    """Against painting a row of cells, one for each unit of time: the first claim that reaches a cell from the left has it."""
    cells, reached = ["other"] * length, start_
    for begin, end, kind in claims:
        first, last = max(begin, reached), min(end, start_ + length)
        for cell in range(first, last):
            cells[cell - start_] = kind
        reached = max(reached, last) if first < last else reached
    filled = [(t, kind) for begin, end, kind in fill(claims, start_, start_ + length) for t in range(begin, end)]
    assert filled == [(start_ + place, kind) for place, kind in enumerate(cells)]


def between(*records, acts=(), **more):
    """Kinds and seconds outside the attempts."""
    found = [one for one in timeline(Story(records, list(acts), {}, **more)) if one.kind in {"pending", "requeue", "idle", "restart"}]
    return [(one.kind, one.took / SECOND) for one in found]


ENDED = {"kind": "requeue", "category": "time_limit"}


def test_time_between_attempts_by_the_table():
    first = attempt(1, 10, 20)
    assert between(first, attempt(2, 25, 30)) == [("restart", 5)]
    assert between(first, attempt(2, 25, 30, restarts=1)) == [("requeue", 5)]
    assert between(first, attempt(2, 25, 30, restarts=1), acts=[act(22, "requeue", "7")]) == [("restart", 2), ("requeue", 3)]
    assert between(attempt(1, 10, 20, job="7_1"), attempt(2, 25, 30, job="7_2")) == [("requeue", 5)]
    asked = [act(0, "submit"), act(60, "submit", "8")]
    assert between(first, attempt(2, 90, 95, job="8"), acts=asked) == [("pending", 10), ("idle", 40), ("pending", 30)]
    assert between(first, attempt(2, 90, 95, job="8")) == [("idle", 70)], "nobody told who asked"
    called_off = [act(0, "submit"), act(4, "cancel"), act(7, "submit")]
    assert between(first, acts=called_off) == [("pending", 4), ("idle", 3), ("pending", 3)]


def test_without_slurm_a_new_run_by_hand_is_no_restart():
    one, two = attempt(1, 10, 20, job=""), attempt(2, 25, 30, job="")
    assert between(one, two, acts=[act(9, "run", "")]) == [("pending", 1), ("restart", 5)]
    assert between(one, two, acts=[act(9, "run", ""), act(24, "run", "")]) == [("pending", 1), ("idle", 4), ("pending", 1)]


def test_time_behind_the_last_attempt():
    last = attempt(1, 10, 20, **ENDED)
    assert between(last) == []
    assert between(last, now=at(50)) == [("restart", 30)]
    assert between(last, now=at(50), waits=True) == [("requeue", 30)]
    assert between(last, now=at(50), waits=True, acts=[act(40, "submit", "9")]) == [("idle", 20), ("pending", 10)]
    assert between(last, acts=[act(40, "submit", "9"), act(45, "cancel", "9"), act(99, "verify")]) == [("idle", 20), ("pending", 5)]


def test_a_job_that_was_asked_for_while_another_ran():
    """`--dependency`: its time in the queue begins when the other ends."""
    assert between(attempt(1, 10, 20), attempt(2, 25, 30, job="8"), acts=[act(12, "submit", "8")]) == [("pending", 5)]


def test_ranks_that_never_came_up():
    silent = attempt(1, 0, 30, t_checked=3, t_ranks=4, category="launch_failure", fault=20, seen=26)
    found = [(one.kind, one.took / SECOND) for one in timeline(Story([silent]))]
    assert found == [("check", 4), ("launch", 16), ("detection", 6), ("ending", 4)]


def test_a_trainer_that_tells_nothing_but_steps():
    events = tell([event(1, 14, "step", step=1), event(1, 18, "step", step=2)])
    found = [(one.kind, one.took / SECOND) for one in timeline(Story([attempt(1, 10, 20)], [], events))]
    assert found == [("startup", 4), ("productive", 4), ("other", 2)]


def test_a_script_that_tells_every_tenth_step():
    events = tell([start(1, 12), event(1, 20, "step", step=10), event(1, 40, "step", step=20, step_s=1.5, count=10)])
    history = Story([attempt(1, 10, 45)], [], events)
    assert [(one.kind, one.took / SECOND) for one in timeline(history)] == [
        ("startup", 2),
        ("build", 8),
        ("other", 5),
        ("productive", 15),
        ("other", 5),
    ]
    assert accounts(history).kept_steps == 11


def test_a_script_that_made_no_step_until_it_was_stopped_has_saved_nothing():
    events = tell([start(1, 12), event(1, 70, "stop", step=0)])
    found = [(one.kind, one.took / SECOND) for one in timeline(Story([attempt(1, 10, 72)], [], events))]
    assert found == [("startup", 2), ("build", 58), ("ending", 2)]


def test_lines_that_are_torn_or_foreign_are_passed_over(tmp_path):
    lines = [one.to_line() for one in (start(1, 10), step(1, 20, 1), step(1, 30, 2))]
    path = tmp_path / "node-000.jsonl"
    path.write_bytes(
        b"\xff\xfe\n{\n" + lines[0].encode() + lines[1][:25].encode() + b"\n[1]\n" + lines[2].encode() + lines[1][:40].encode()
    )
    told = tell(read_lines(path))[1]
    assert [(mark.step, mark.t) for mark in told.marks] == [(2, round(at(30) * SECOND))]
    assert list(read_lines(tmp_path / "nothing")) == []
    huge = json.dumps({"v": 1, "t": 10**400, "attempt": 1, "rank": 0, "kind": "step", "step": 1})
    path.write_text(huge + "\n")
    assert tell(read_lines(path)) == {}


def test_every_kind_belongs_to_a_part():
    assert {part_of(kind) for kind in KINDS} == set(PARTS)
