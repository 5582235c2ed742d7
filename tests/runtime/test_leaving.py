"""A rank that has left by agreement is no loss: broken, mpiexec kills those that are a moment later, and the run looks failed."""

from __future__ import annotations

import sys

import pytest

from tests.mpi_world import run_command


@pytest.mark.mpi
def test_ranks_may_leave_one_after_another():
    done = run_command([sys.executable, "-m", "tests.runtime.leaving"], tasks_per_node=4)
    assert [f"rank {rank} leaves" in done.out for rank in range(4)] == [True] * 4
