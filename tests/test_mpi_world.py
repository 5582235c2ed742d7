"""The helper that starts worlds for tests: ranks, nodes, results, failures and limits."""

from __future__ import annotations

import os
import sys
import time

import pytest

from tests.mpi_world import gloo_group, launcher_rank, run_command, run_world


def place(number: int) -> tuple[int, int, str]:
    rank, size = launcher_rank()
    return number + rank, size, os.environ["SLURMTRAIN_NODE"]


def fail_on_one() -> None:
    if launcher_rank()[0] == 1:
        raise ValueError("rank one cannot")


def hang() -> None:
    time.sleep(600)


def summed() -> float:
    import torch
    import torch.distributed as dist

    group = gloo_group()
    value = torch.tensor(float(group.rank + 1))
    dist.all_reduce(value)
    dist.destroy_process_group()
    return value.item()


@pytest.mark.mpi
def test_every_rank_runs_the_function_on_its_node():
    world = run_world(place, 10, nodes=["a1", "b2"], tasks_per_node=2, timeout_s=30)
    assert world.results == [(10, 4, "a1"), (11, 4, "a1"), (12, 4, "b2"), (13, 4, "b2")]


@pytest.mark.mpi
def test_a_failing_rank_fails_the_world_with_its_words():
    with pytest.raises(AssertionError, match="rank one cannot"):
        run_world(fail_on_one, timeout_s=30)


@pytest.mark.mpi
def test_a_hang_ends_at_the_limit_and_shows_where():
    started = time.monotonic()
    with pytest.raises(AssertionError, match="in hang"):
        run_world(hang, timeout_s=8)
    assert time.monotonic() - started < 20


@pytest.mark.mpi
def test_a_command_sees_no_variable_of_a_surrounding_slurm_job(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "99")
    code = "import os, sys; sys.stdout.write('NTASKS is %s\\n' % os.environ.get('SLURM_NTASKS'))"
    assert "NTASKS is None" in run_command([sys.executable, "-c", code], tasks_per_node=1, timeout_s=30).out


@pytest.mark.mpi
def test_gloo_without_mpi():
    assert run_world(summed, tasks_per_node=2).results == [3.0, 3.0]
