"""A bit turns over on one rank: all ranks end at the same step, and what comes after finds out why; a gradient that is not a number on
one rank alone is skipped, and gone back from, by all.
"""

from __future__ import annotations

import json

import pytest
import torch

from slurmtrain.resilience.examination import read_examination
from slurmtrain.store.listing import steps_present
from slurmtrain.telemetry.history import read_acts
from tests.mpi_world import run_world
from tests.train.corrupted import Try, tried
from tests.train.faulty import doomed, flip, nan
from tests.train.runs import make_data, make_run
from tests.train.several import job_of, tensors_of

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

LAST = 9
NODES = ("n1", "n2", "n3", "n4")


def made(folder, data, gpus, every=3, numerics=None, **layout):
    recovery = {"corruption": {"every_steps": every}, "numerics": numerics or {}}
    training = {"steps": LAST, "micro_batch": 2}
    return make_run(folder, job_of(data, sections={"recovery": recovery}, gpus=gpus, training=training, every=4, **layout))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Of two ranks: undisturbed; one flipped bit; the same bit in every attempt; zero1; a NaN on rank 1; errors by attempt."""
    folder, data = tmp_path_factory.mktemp("pair"), make_data(tmp_path_factory.mktemp("data"))
    numerics = {"skip_steps": 1, "rollbacks": 1}
    runs = {name: made(folder / name, data, 2) for name in ("plain", "once", "always")}
    runs |= {"zero1": made(folder / "zero1", data, 2, every=1, dp_mode="zero1"), "nan": made(folder / "nan", data, 2, numerics=numerics)}
    doomed(runs["once"].run, flip(5, 1))
    doomed(runs["always"].run, flip(5, 1, attempt=0))
    doomed(runs["zero1"].run, flip(5, 1))
    doomed(runs["nan"].run, nan(6, rank=1), nan(7, rank=1))
    tries = [("plain", 1), ("once", 1), ("once", 2), ("always", 1), ("always", 2), ("zero1", 1), ("nan", 1)]
    world = run_world(tried, [Try(runs[name].run.path, number, NODES[:2]) for name, number in tries], timeout_s=240)
    assert world.results[0] == world.results[1], "all ranks hear the same"
    return runs, dict(zip(tries, world.results[0], strict=True))


def same_end(run, other):
    one, two = tensors_of(run.run, LAST), tensors_of(other.run, LAST)
    assert [name for name in one if not torch.equal(one[name], two[name])] == []


def test_undisturbed(pair):
    runs, told = pair
    assert told["plain", 1] == "finished"
    assert runs["plain"].events("corruption") == []
    assert not runs["plain"].run.examination_json.exists()


def test_two_replicas_are_suspects_of_each_other(pair):
    runs, told = pair
    words = "SilentCorruptionError: after step 6 replicas differ: rank 0 on n1, GPU 0; rank 1 on n2, GPU 0 (one of them; none is outvoted)"
    assert told["once", 1] == f"{words}; all replicas were equal at step 4; nothing was saved since"
    (first, second) = runs["once"].events("corruption")
    assert (first["step"], first["equal_at"], first["certain"], first["stage"], first["again"]) == (6, 4, False, "repeat", [5, 6])
    assert first["suspects"] == [{"rank": 0, "node": "n1", "gpu": 0}, {"rank": 1, "node": "n2", "gpu": 0}]
    assert (second["step"], second["finding"]) == (6, "transient")


def test_what_came_once_costs_the_steps_since_the_last_comparison(pair):
    runs, told = pair
    run = runs["once"]
    assert told["once", 2] == "finished"
    assert run.events("start", 2)[0]["resumed_from"] == 4
    assert run.steps(2) == runs["plain"].steps()[4:]
    same_end(run, runs["plain"])
    exam = read_examination(run.run.examination_json)
    assert (exam.stage, exam.finding, exam.attempts) == ("closed", "transient", (1,))
    assert [act.detail.partition(":")[0] for act in read_acts(run.run) if act.what == "silent corruption"] == ["repeat", "transient"]
    assert not run.run.exclude_json.exists()


def test_the_steps_are_compared_one_by_one_when_they_are_run_again(pair):
    runs, told = pair
    run = runs["always"]
    assert "after step 6 replicas differ" in told["always", 1]
    assert "after step 5 replicas differ" in told["always", 2]
    assert steps_present(run.run.checkpoints) == [4]
    exam = read_examination(run.run.examination_json)
    assert (exam.stage, exam.moved, exam.attempts) == ("exchange", "n2", (1, 2))


def test_what_modules_compute_with_under_zero1(pair):
    _, told = pair
    assert told["zero1", 1].startswith("SilentCorruptionError: after step 5 replicas differ: rank 0 on n1, GPU 0; rank 1 on n2, GPU 0")


def test_a_nan_of_one_rank_is_everybodys(pair):
    runs, told = pair
    run = runs["nan"]
    assert told["nan", 1] == "finished"
    assert [(e["step"], e["cause"]) for e in run.events("skip")] == [(6, "nonfinite")]
    assert [(e["step"], e["to"]) for e in run.events("rollback")] == [(7, 4)]
    assert run.steps()[-5:] == runs["plain"].steps()[4:]
    same_end(run, runs["plain"])


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """Of four replicas: rank 2 differs twice, then, when its node n3 has changed places with n1, rank 0."""
    folder, data = tmp_path_factory.mktemp("four"), make_data(tmp_path_factory.mktemp("data"))
    run = made(folder / "run", data, 4)
    doomed(run.run, flip(5, 2), flip(5, 2, attempt=2), flip(6, 0, attempt=3))
    places = [NODES, NODES, ("n3", "n2", "n1", "n4"), ("n5", "n2", "n1", "n4")]
    world = run_world(tried, [Try(run.run.path, i, nodes) for i, nodes in enumerate(places, 1)], tasks_per_node=4, timeout_s=240)
    assert all(told == world.results[0] for told in world.results)
    return run, world.results[0]


def test_of_four_the_odd_one_is_named(four):
    run, told = four
    assert told[0].startswith("SilentCorruptionError: after step 6 replicas differ: rank 2 on n3, GPU 0; all replicas were equal at step 4")
    assert [e["certain"] for e in run.events("corruption")] == [True] * 3


def test_what_goes_with_a_node_keeps_the_run_off_it(four):
    run, told = four
    assert told[1].startswith("SilentCorruptionError: after step 5 replicas differ: rank 2 on n3")
    assert told[2].startswith("SilentCorruptionError: after step 6 replicas differ: rank 0 on n3")
    assert [e.get("finding", e["stage"]) for e in run.events("corruption")] == ["repeat", "exchange", "persistent"]
    assert run.events("corruption")[2]["node"] == "n3"
    excluded = json.loads(run.run.exclude_json.read_bytes())["nodes"]
    assert list(excluded) == ["n3"]
    assert "silent corruption" in excluded["n3"]["reason"]
    assert told[3] == "finished"
