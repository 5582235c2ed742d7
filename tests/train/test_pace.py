"""The interval that a run works out for itself: what it learns, when a save is due, when it says so."""

from __future__ import annotations

import json
import statistics

import pytest

from slurmtrain.config.site import SiteConfig
from slurmtrain.planner.interval import DAY_S, Seen, daly
from slurmtrain.resilience.records import AttemptRecord, Outcome, write_attempt
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.events import Event
from slurmtrain.train.pace import FIRST_S, Pace, earlier_stalls, make_pace, seen_before
from tests.fakes.clock import FakeClock
from tests.fakes.disk import FakeDisk

RATE = 0.5
NODES = 8
LONG = Seen(5000, 10_000.0)
"""A run that has met the site's rate for long: nothing of now moves it."""


def best(stall_s: float) -> float:
    return daly(stall_s, DAY_S / (NODES * RATE))


class Told(list):
    def __call__(self, kind, **fields):
        self.append({"kind": kind, **fields})


def make(clock, told=None, *, stalls=(), before=None, nodes=NODES):
    return Pace(
        nodes=nodes,
        site_rate=RATE,
        restart_s=100.0,
        before=before or LONG,
        stalls=stalls,
        clock=clock,
        tell=Told() if told is None else told,
    )


def train(pace, clock, step_s, steps, stall_s=0.0):
    """Seconds of training before each save. A save stands still for `stall_s`."""
    spans, since = [], clock.monotonic()
    for number in range(steps):
        due = pace.due()
        clock.advance(step_s)
        if due:
            spans.append(clock.monotonic() - since)
            pace.saving()
            clock.advance(stall_s)
            pace.saved()
            pace.learn(number, stall_s)
            since = clock.monotonic()
    return spans


def test_the_first_save_is_there_to_learn_then_dalys_interval_holds():
    """10 s a save, 8 nodes that fail every second day: M = 6 hours."""
    clock, told = FakeClock(), Told()
    spans = train(make(clock, told), clock, 1.0, 4000, stall_s=10.0)
    assert spans[0] == pytest.approx(FIRST_S, abs=1.0)
    assert statistics.fmean(spans[1:]) == pytest.approx(best(10.0), rel=0.01)
    assert told[0]["seconds"] == pytest.approx(best(10.0), rel=0.01)
    assert (told[0]["stall_s"], told[0]["nodes"], told[0]["restart_s"], told[0]["step_s"]) == (10.0, 8, 100.0, 1.0)


@pytest.mark.parametrize("step_s", [7.0, 60.0, 100.0, 1000.0])
def test_the_save_is_after_the_step_that_is_nearest(step_s):
    clock = FakeClock()
    spans = train(make(clock, stalls=[10.0]), clock, step_s, max(20, round(6500 / step_s)), stall_s=10.0)
    nearest = max(1, round(best(10.0) / step_s)) * step_s
    assert spans[2:] == pytest.approx([nearest] * len(spans[2:]))
    assert len(spans) > 5


def test_earlier_attempts_save_the_learning():
    clock, told = FakeClock(), Told()
    pace = make(clock, told, stalls=[4.0, 6.0])
    pace.due()
    assert pace.seconds == pytest.approx(best(5.0), rel=1e-3)
    assert [one["kind"] for one in told] == ["interval"]


def test_only_a_change_of_a_tenth_is_told():
    """The interval grows as the root of the stall: 4 to 4.4 s is 5 % more, to 5 s 12 %."""
    clock, told = FakeClock(), Told()
    pace = make(clock, told, stalls=[4.0])
    pace.due()
    for step in range(16):
        pace.learn(step, 4.4)
    assert len(told) == 1
    for step in range(16, 32):
        pace.learn(step, 5.0)
    assert len(told) == 2
    assert told[1]["seconds"] / told[0]["seconds"] == pytest.approx((5 / 4) ** 0.5, abs=0.03)


def test_of_a_save_that_went_to_two_places_the_longer_time_counts():
    pace = make(FakeClock(), stalls=())
    pace.learn(10, 2.0)
    pace.learn(10, 6.0)
    pace.learn(10, 3.0)
    assert pace.seconds == pytest.approx(best(6.0), rel=1e-3)


def test_failures_that_were_met_bring_saves_together_and_quiet_days_apart():
    clock = FakeClock()
    calm = make(clock, stalls=[10.0], before=Seen(0, 100.0))
    rough = make(clock, stalls=[10.0], before=Seen(40, 20.0))
    assert calm.due() == rough.due() is False
    assert rough.seconds < best(10.0) < calm.seconds
    before = calm.seconds
    clock.advance(20 * DAY_S)
    calm.learn(1, 10.0)
    assert calm.seconds == pytest.approx(daly(10.0, DAY_S * (2 / RATE + 100 + 160) / 2 / NODES), rel=1e-6)
    assert calm.seconds > before


def record(number, outcome, hours=24.0, nodes=4):
    done = None if outcome is None else Outcome(**{"t_end": hours * 3600, "cause": "", **outcome})
    return AttemptRecord(number, "1", 0, 0.0, tuple(f"n{i}" for i in range(nodes)), (), 8, nodes * 8, outcome=done)


def test_what_counts_as_a_failure():
    """Node-days of all; failures where work was lost. A day on four nodes each; one that nobody closed has no length."""
    outcomes = [
        {"kind": "node_failure", "category": "node_failure"},
        {"kind": "failed", "category": "rank_crash"},
        {"kind": "failed", "category": "hang", "fault_t": 12 * 3600.0},
        {"kind": "requeue", "category": "time_limit"},
        {"kind": "requeue", "category": "preempted"},
        {"kind": "config", "category": "configuration"},
        {"kind": "launch", "category": "launch_failure"},
        {"kind": "stopped", "category": "stopped"},
        {"kind": "node_failure"},
        {"kind": "failed"},
        {"kind": "requeue"},
        None,
    ]
    records = [record(number, outcome) for number, outcome in enumerate(outcomes, 1)]
    assert seen_before(records, len(records) + 1) == Seen(6, 4 * 10.5)
    assert seen_before(records, 3) == Seen(2, 8.0)


def test_a_run_folder_tells_all(tmp_path):
    run, clock, told = RunDir(tmp_path), FakeClock(), Told()
    run.create()
    site = SiteConfig.model_validate({"name": "s", "node": {"gpus": 8}, "reliability": {"failures_per_node_day": RATE, "restart_s": 77.0}})
    run.site_json.write_text(site.model_dump_json())
    saves = [Event("save", 1.0, 1, 0, {"step": step, "seconds": 3.0, "write_s": 9.0}) for step in range(10, 300, 10)]
    saves += [
        Event("save", 2.0, 2, 0, {"step": 300, "seconds": 1.0, "tier": "local"}),
        Event("save", 2.0, 2, 0, {"step": 300, "seconds": 4.0}),
    ]
    steps = Event("step", 2.0, 2, 0, {"step": 301, "loss": 1.0, "grad_norm": 1.0}).to_line() * 20_000
    run.event_file(0).write_text("".join(one.to_line() for one in saves) + steps + '{"torn":')
    assert earlier_stalls(run) == [3.0] * 15 + [4.0]
    for number, outcome in ((1, {"kind": "failed", "category": "rank_crash"}), (2, None)):
        run.attempt(number).create()
        write_attempt(run, FakeDisk(), record(number, outcome))
    path = run.attempt(2).attempt_json
    path.write_text(json.dumps({**json.loads(path.read_text()), "t_start": clock.time() - 42.0}))
    pace = make_pace(run, 2, nodes=4, clock=clock, tell=told)
    pace.due()
    assert (told[0]["failures"], told[0]["node_days"], told[0]["restart_s"]) == (1, 4.0, pytest.approx(42.0))
    assert told[0]["seconds"] == pytest.approx(daly(49 / 16, DAY_S * (2 / RATE + 4) / 3 / 4), rel=1e-4)


def test_a_new_run_knows_what_the_site_says(tmp_path):
    run = RunDir(tmp_path)
    run.create()
    site = SiteConfig.model_validate({"name": "s", "node": {"gpus": 8}, "reliability": {"restart_s": 77.0}})
    run.site_json.write_text(site.model_dump_json())
    told = Told()
    pace = make_pace(run, 1, nodes=4, clock=FakeClock(), tell=told)
    pace.due()
    assert told == []
    pace.learn(1, 2.0)
    assert (told[0]["restart_s"], told[0]["site_failures_per_node_day"]) == (77.0, 0.0065)
