"""The time to stop: closed forms."""

from __future__ import annotations

from slurmtrain.resilience.deadline import another_start_s, stop_at, too_short


def test_end_minus_twice_the_slowest_save_a_step_and_a_minute():
    assert stop_at(10_000.0, [3.0, 20.0, 5.0], 7.0) == 10_000 - 40 - 7 - 60


def test_no_save_yet_and_no_end():
    assert stop_at(10_000.0, [], 0.0) == 9_940
    assert stop_at(None, [20.0], 7.0) is None


def test_a_limit_that_is_too_short_is_told_with_both_numbers():
    line = too_short(9_950.0, 10_000.0, [20.0], 7.0)
    assert line is not None
    assert "00:00:50" in line
    assert "00:01:47" in line


def test_a_limit_that_is_long_enough_is_not_told():
    assert too_short(9_000.0, 10_000.0, [20.0], 7.0) is None
    assert too_short(9_000.0, None, [20.0], 7.0) is None


def test_another_start_takes_what_the_last_one_took_a_step_two_saves_and_a_minute():
    assert another_start_s(1_000.0, 1_090.0, [20.0, 3.0], 7.0) == 90 + 40 + 7 + 60
    assert another_start_s(1_000.0, None, [], 0.0) == 60
