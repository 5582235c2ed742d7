"""What ranks tell of themselves while they train: each phase, each step, each collective, at the cost of microseconds."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.mpi_world import run_world
from tests.train.beats import beating
from tests.train.runs import make_data, make_run
from tests.train.several import job_of

pytestmark = [pytest.mark.mpi]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Four steps of tp2 with a save after the second, and an evaluation after it and the last."""
    root = tmp_path_factory.mktemp("beats")
    data = make_data(root)
    sections = {"evaluation": {"every_steps": 2, "sets": {"held-out": str(data)}, "batches": 2}}
    job = job_of(data, sections=sections, gpus=2, tp=2, every=2, training={"steps": 4})
    run = make_run(root / "run", job)
    return run_world(beating, run.run.path, root / "memory", timeout_s=120).results


def test_every_phase_is_told_in_its_order(told):
    for phases, *_ in told:
        assert phases[:2] == [("init", 0), ("load", 0)]
        assert phases[-1] == ("end", 4)
        names = [phase for phase, _ in phases]
        assert set(names) == {"init", "load", "save", "step", "data", "wait", "eval", "end"}
        for step in range(4):
            mine = [phase for phase, after in phases if after == step and phase in {"data", "wait"}]
            assert mine == ["data", "wait"], "of each step: its batch, its reduction"
        assert [after for phase, after in phases if phase == "eval"] == [2, 4]
        assert {2, 4} <= {after for phase, after in phases if phase == "save"}
        assert all(before <= after for (_, before), (_, after) in pairwise(phases)), "steps only grow"


def test_ranks_of_a_tensor_parallel_pair_enter_as_many_collectives(told):
    counts = {entered for *_, entered, _, _ in told}
    assert len(counts) == 1
    assert counts.pop() > 4 * 4, "at least one in each layer of each step"


def test_a_ranks_own_work_is_told_after_each_step_but_the_last(told):
    for _, works, *_ in told:
        assert len(works) == 3
        assert all(work > 0 for work in works)


def test_a_beat_costs_microseconds(told):
    for *_, cost_us, beats in told:
        assert cost_us < 100, f"{cost_us:.1f} us a beat"
        assert beats < 4 * 50, "collectives are counted apart"
