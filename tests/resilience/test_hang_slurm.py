"""Hangs on a real Slurm, with the tiny trainer: a node that stops answering, and ranks that are stopped; a spare takes the place."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from slurmtrain.resilience.records import read_attempt
from tests.fixtures_slurm import SlurmCluster
from tests.resilience.runs import make_run
from tests.resilience.test_slurm import Started, submit, wait_for_step
from tests.resilience.test_slurm_in_place import STEPS, finished_in_place, processes_of

pytestmark = [pytest.mark.slurm, pytest.mark.long]
LIMIT_S = 8.0
MARGIN_S = 5.0
"""Reports come every three seconds where nothing changes."""


@pytest.fixture(scope="module")
def started(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Started]]:
    """Both at once, on three nodes each."""
    root = tmp_path_factory.mktemp("hangs", numbered=True)
    behaviour = {"steps": STEPS, "step_s": 0.1, "save_every": 5, "together": True}
    found: dict[str, Started] = {}
    for name in ("hung", "stopped"):
        recovery = {"hang": {"step_s": LIMIT_S}, "backoff_s": 0.1}
        run = make_run(root / name, launcher="srun", nodes=2, spares=1, behaviour=behaviour, recovery=recovery)
        found[name] = Started(run, submit(cluster, run, "--no-kill", nodes=3))
    for one in found.values():
        wait_for_step(cluster, one.run, 7)
    hung = read_attempt(found["hung"].run, 1).nodes[-1]
    cluster.hang(hung)
    for rank in (2, 3):
        os.kill(int((found["stopped"].run.attempt(1).path / f"pid-{rank}").read_text()), signal.SIGSTOP)
    yield found
    cluster.run(["scancel", *(one.job for one in found.values())], check=False)
    cluster.restore(hung)


def test_a_hung_node_costs_one_attempt_and_the_spare_steps_in(cluster, started):
    run = started["hung"].run
    log = finished_in_place(cluster, started["hung"])
    first, second = read_attempt(run, 1), read_attempt(run, 2)
    assert (first.outcome.category, first.outcome.node) == ("hang", first.nodes[-1]), log
    assert LIMIT_S <= first.outcome.seen_t - first.outcome.fault_t <= LIMIT_S + MARGIN_S, log
    assert set(second.nodes) == {first.nodes[0], *first.spares}, log


def test_all_ranks_of_a_node_stopped_end_the_attempt_within_the_limit_and_the_node_is_suspected(cluster, started):
    """C30."""
    run = started["stopped"].run
    log = finished_in_place(cluster, started["stopped"])
    first, second = read_attempt(run, 1), read_attempt(run, 2)
    assert (first.outcome.category, first.outcome.rank, first.outcome.node) == ("hang", 2, first.nodes[-1]), log
    assert LIMIT_S <= first.outcome.seen_t - first.outcome.fault_t <= LIMIT_S + MARGIN_S, log
    assert "(and 1 more rank) hangs: its process is stopped" in first.outcome.cause
    assert first.nodes[-1] not in second.nodes
    assert run.attempt(1).stack(2).read_text().startswith(f"rank 2 on {first.nodes[-1]}: wait, its process is stopped")
    assert processes_of(run, 1) == []
