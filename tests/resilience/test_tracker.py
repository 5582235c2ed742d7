"""What events teach: the slowest save of all attempts, the slowest recent step, and whether this attempt has spoken."""

from __future__ import annotations

from slurmtrain.resilience.tracker import Tracker
from slurmtrain.telemetry.events import Event


def event(kind: str, attempt: int = 2, **fields: object) -> Event:
    return Event(kind, 0.0, attempt, 0, fields)


def test_saves_of_earlier_attempts_count_but_their_steps_are_not_this_ones():
    tracker = Tracker(2)
    assert tracker.take([event("save", 1, step=10, seconds=20.0), event("step", 1, step=10, step_s=0.5)]) == []
    assert (tracker.slowest_save_s, tracker.step_s, tracker.steps_done, tracker.spoke) == (20.0, 0.5, 0, False)
    mine = [event("start"), event("step", step=11, step_s=0.7), event("save", step=11, seconds=3.0)]
    assert tracker.take(mine) == mine
    assert (tracker.slowest_save_s, tracker.step_s, tracker.steps_done, tracker.last_step) == (20.0, 0.7, 1, 11)
    assert tracker.spoke


def test_a_save_beside_the_training_is_as_slow_as_its_writing():
    tracker = Tracker(2)
    tracker.take([event("save", step=10, seconds=0.1, write_s=30.0), event("save", step=20, seconds=0.2)])
    assert tracker.slowest_save_s == 30.0


def test_a_slow_step_of_long_ago_is_forgotten():
    tracker = Tracker(2)
    tracker.take([event("step", step=1, step_s=60.0), *(event("step", step=n, step_s=0.1) for n in range(2, 60))])
    assert tracker.step_s == 0.1


def test_what_is_not_a_number_teaches_nothing():
    tracker = Tracker(2)
    tracker.take([event("save", seconds="nan"), event("step", step="x", step_s=None)])
    assert (tracker.slowest_save_s, tracker.step_s, tracker.last_step) == (0.0, 0.0, None)
