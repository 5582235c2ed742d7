"""Values come in order, never more than `depth` ahead; an error comes where its value would have; the thread ends when told to."""

from __future__ import annotations

import itertools
import threading

import pytest

from slurmtrain.data.prefetch import Prefetch


def test_values_come_in_order_and_no_more_than_depth_are_made_ahead():
    made, gate = [], threading.Semaphore(0)

    def make():
        made.append(len(made))
        gate.release()
        return made[-1]

    ahead = Prefetch(make, 2)
    for _ in range(2):
        assert gate.acquire(timeout=30)
    assert not gate.acquire(timeout=0.05), "a third one would be too many"
    assert ahead.take() == 0
    assert gate.acquire(timeout=30)
    assert [ahead.take() for _ in range(20)] == list(range(1, 21))
    ahead.close()


def test_an_error_comes_behind_the_values_before_it_and_again():
    numbers = itertools.count()

    def make():
        if (n := next(numbers)) == 3:
            raise OSError("the disk is gone")
        return n

    ahead = Prefetch(make, 8)
    assert [ahead.take() for _ in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is gone"):
            ahead.take()
    ahead.close()


def test_stop_iteration_is_an_error_and_no_silent_end():
    ahead = Prefetch(lambda: next(iter(())), 1)
    with pytest.raises(StopIteration):
        ahead.take()
    ahead.close()


def test_closing_waits_for_what_is_being_made_and_ends_the_thread():
    begun, may_end = threading.Event(), threading.Event()

    def make():
        begun.set()
        may_end.wait(30)
        return 1

    ahead = Prefetch(make, 1)
    assert begun.wait(30)
    threading.Timer(0.01, may_end.set).start()
    ahead.close()
    assert may_end.is_set()
    assert not ahead._thread.is_alive()
