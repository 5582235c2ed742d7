"""Whatever job the checks let through trains as one process does: jobs at random, where the matrix has those that somebody thought of.

Broken: a combination that submit accepts and that hangs, dies in a collective, or trains something else.
"""

from __future__ import annotations

from itertools import islice

import pytest

from tests.mpi_world import run_world
from tests.train.random_jobs import both_ways, legal_jobs

RANKS = 4


def test_the_jobs_are_all_kinds():
    """Every schedule, mode and family is among the first few hundred, so that none is refused altogether."""
    jobs = [job for _, job, _ in islice(legal_jobs(0, RANKS), 300)]
    assert len({job.parallel.schedule for job in jobs}) == 8
    assert {job.parallel.dp_mode for job in jobs} == {"ddp", "zero1", "zero2", "fsdp"}
    assert {job.parallel.cp_mode for job in jobs if job.parallel.cp > 1} == {"ring", "allgather", "ulysses"}
    assert len({job.model.family for job in jobs}) == 4


def check(first: int, number: int) -> None:
    world = run_world(both_ways, first, number, RANKS, tasks_per_node=RANKS, timeout_s=60 + 15 * number)
    assert len(world.results[0]) == number
    for seed, job, together, single in world.results[0]:
        assert together == pytest.approx(single, rel=2e-5, abs=1e-9), (seed, job)


@pytest.mark.mpi
@pytest.mark.slow
def test_a_few_random_jobs():
    check(0, 8)


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.parametrize("first", [1000, 2000, 3000, 4000])
def test_many_random_jobs(first):
    check(first, 25)
