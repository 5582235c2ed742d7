"""The doors to time: the machine's and the fake keep the same contract."""

from __future__ import annotations

import threading

import pytest

from slurmtrain.clock import Clock, SystemClock
from tests.fakes.clock import FakeClock


class ClockConformance:
    @pytest.fixture
    def clock(self) -> Clock:
        raise NotImplementedError

    def test_sleep_passes_at_least_that_time_on_both_clocks(self, clock):
        wall, steady = clock.time(), clock.monotonic()
        clock.sleep(0.03125)
        assert clock.monotonic() - steady >= 0.03125
        assert clock.time() - wall >= 0.031

    @pytest.mark.parametrize("seconds", [0, -1])
    def test_sleeping_no_time_returns(self, clock, seconds):
        before = clock.monotonic()
        clock.sleep(seconds)
        assert clock.monotonic() >= before

    def test_an_event_that_is_set_is_not_waited_for(self, clock):
        event, before = threading.Event(), clock.monotonic()
        event.set()
        assert clock.wait(event, 30) is True
        assert clock.monotonic() - before < 30

    @pytest.mark.parametrize("seconds", [0.03125, 0, -1])
    def test_an_event_that_never_comes_is_given_up(self, clock, seconds):
        before = clock.monotonic()
        assert clock.wait(threading.Event(), seconds) is False
        assert clock.monotonic() - before >= min(seconds, 0.03125) or seconds <= 0

    def test_an_event_of_another_thread_ends_the_wait(self, clock):
        event = threading.Event()
        setter = threading.Thread(target=event.set)
        setter.start()
        setter.join()
        assert clock.wait(event, 5) is True


class TestSystemClock(ClockConformance):
    @pytest.fixture
    def clock(self):
        return SystemClock()


class TestFakeClock(ClockConformance):
    @pytest.fixture
    def clock(self):
        return FakeClock()

    def test_an_hour_passes_at_once_and_what_is_due_happens_in_order(self, clock):
        seen = []
        clock.at(60, lambda: seen.append(("second", clock.monotonic())))
        clock.at(30, lambda: seen.append(("first", clock.monotonic())))
        start = clock.monotonic()
        clock.sleep(3600)
        assert seen == [("first", start + 30), ("second", start + 60)]
        assert clock.slept == [3600]

    def test_a_wait_ends_at_the_moment_its_event_is_set(self, clock):
        event, start = threading.Event(), clock.monotonic()
        clock.at(5, event.set)
        assert clock.wait(event, 100) is True
        assert clock.monotonic() == start + 5
