"""Slow ranks: told once they are slow for long enough, against the right peers, and again only after a recovery."""

from __future__ import annotations

import time
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.config.recovery import StragglerConfig
from slurmtrain.resilience.stragglers import Straggler, Stragglers, Work, median_without

WISH = StragglerConfig(factor=1.5, steps=5)


def run(watch: Stragglers, steps, *work: float) -> list[tuple[int, Straggler]]:
    """Every rank with the same work in each of the steps."""
    found = []
    for step in steps:
        works = {rank: Work(step, seconds, f"n{rank // 2 + 1}") for rank, seconds in enumerate(work)}
        found += [(step, one) for one in watch.look(works)]
    return found


def test_a_rank_that_stays_slow_is_told_once_and_with_its_factor():
    found = run(Stragglers(WISH), range(1, 50), 1.0, 1.1, 1.0, 2.2)
    assert [(step, one.rank, one.node) for step, one in found] == [(5, 3, "n2")]
    assert found[0][1].factor == pytest.approx(2.2)
    assert "rank 3 on n2 is slow: 2.2 s of computing a step, 2.20 times its peers' 1 s" in str(found[0][1])


@pytest.mark.parametrize("slow", [1.0, 1.49, 1.5])
def test_up_to_the_factor_nobody_is_slow(slow):
    assert run(Stragglers(WISH), range(1, 50), 1.0, 1.0, 1.0, slow) == []


def test_one_quick_step_in_between_begins_anew():
    watch = Stragglers(WISH)
    assert run(watch, range(1, 5), 1, 1, 1, 2) == []
    assert run(watch, [5], 1, 1, 1, 1) == []
    assert run(watch, range(6, 10), 1, 1, 1, 2) == []
    assert [step for step, _ in run(watch, [10], 1, 1, 1, 2)] == [10]
    assert run(watch, range(11, 30), 1, 1, 1, 2) == []
    assert run(watch, [30], 1, 1, 1, 1) == []
    assert [step for step, _ in run(watch, range(31, 60), 1, 1, 1, 2)] == [35]


def test_samples_that_skip_steps_count_the_steps_between():
    assert [step for step, _ in run(Stragglers(WISH), [10, 12, 20], 1, 1, 1, 2)] == [20]


@given(st.lists(st.floats(0.001, 1e3), min_size=2, max_size=12), st.data())
def test_the_median_of_the_others(works, data):
    index = data.draw(st.integers(0, len(works) - 1))
    others = works[:index] + works[index + 1 :]
    assert median_without(sorted(works), works[index]) == pytest.approx(median(others))


def test_ten_thousand_ranks_are_looked_at_in_no_time():
    watch, count = Stragglers(WISH), 10_000
    began = time.process_time()
    for step in (1, 6):
        found = watch.look({rank: Work(step, 1.0 + rank / count + 2 * (rank == 77), f"n{rank // 8}") for rank in range(count)})
    assert [one.rank for one in found] == [77]
    assert time.process_time() - began < 2


def test_a_run_that_goes_back_begins_to_count_anew():
    watch = Stragglers(WISH)
    assert run(watch, range(10, 14), 1, 1, 1, 2) == []
    assert [step for step, _ in run(watch, range(6, 20), 1, 1, 1, 2)] == [10]


def test_the_same_step_seen_twice_counts_once():
    watch = Stragglers(StragglerConfig(factor=1.5, steps=2))
    assert run(watch, [1, 1, 1, 1], 1, 1, 1, 2) == []
    assert len(run(watch, [2, 2], 1, 1, 1, 2)) == 1


def test_peers_are_those_of_the_same_pipeline_stage():
    """Stage 1 computes twice as long by design, and its second rank half as long again and more."""
    work = (1.0, 1.0, 1.0, 2.0, 2.0, 3.1)
    assert [one.rank for _, one in run(Stragglers(WISH, (0, 0, 0, 1, 1, 1)), range(1, 9), *work)] == [5]
    assert [one.rank for _, one in run(Stragglers(WISH), range(1, 9), *work)] == [3, 4, 5]
    assert run(Stragglers(WISH, (0, 1)), range(1, 9), 1.0, 9.0) == [], "alone in its stage: nobody to compare with"


def test_of_two_ranks_the_slower_one_is_slow():
    assert [one.rank for _, one in run(Stragglers(WISH), range(1, 9), 1.0, 1.6)] == [1]


def test_milliseconds_are_noise():
    assert run(Stragglers(WISH), range(1, 9), 0.005, 0.014) == []
    assert len(run(Stragglers(WISH), range(1, 9), 0.005, 0.016)) == 1


def test_a_rank_without_a_step_yet_is_neither_slow_nor_a_peer():
    assert run(Stragglers(WISH), range(1, 9), 0.0, 0.0, 1.0, 1.0) == []
