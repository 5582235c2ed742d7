"""Runs that change on their way: the batch grows through a resume, the layout changes and takes the moving average along.

And what needs many steps of two ranks beside: Muon, gradients that travel in bf16.
"""

from __future__ import annotations

import statistics

import pytest
import torch

from slurmtrain.train.loop import Ending
from slurmtrain.train.ramp import global_batch_at
from tests.mpi_world import run_world
from tests.train.runs import make_data, make_run
from tests.train.several import Attempt, job_of, several, tensors_of
from tests.train.solo import solo_loop, solo_world

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

SMALL_STEPS = {"lr": 1e-3, "min_lr": 1e-3, "warmup_steps": 0}
RAMP = {"training": {"steps": 7, "batch_ramp": {"start": 4, "increment": 2, "samples": 16}}, "optimizer": SMALL_STEPS}
AVERAGE = {"training": {"steps": 6, "micro_batch": 2, "ema_decay": 0.7}, "optimizer": SMALL_STEPS}
MUON = {"training": {"steps": 10, "micro_batch": 2}, "optimizer": {"name": "muon", "lr": 2e-3, "warmup_steps": 0}}
BF16 = {"steps": 60, "micro_batch": 4, "dtype": "bf16"}
FINISHED = {"ramp": 7, "average": 6, "muon": 10}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    """{what: one process's run of it}."""
    folder, runs = tmp_path_factory.mktemp("alone"), {}
    with solo_world(folder):
        for name, keys in {"ramp": RAMP, "average": AVERAGE, "muon": MUON}.items():
            runs[name] = make_run(folder / name, job_of(data, gpus=1, **keys))
            assert solo_loop(runs[name])[1].run() == Ending("finished", FINISHED[name])
    return runs


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("runs"), {}

    def start(name, keys, **layout):
        made[name] = make_run(folder / name, job_of(data, gpus=2, **keys, **layout))
        return made[name].run.path

    moved = start("average", AVERAGE, tp=2)
    ways = {"pp": {"pp": 2}, "dp": {"dp_mode": "fsdp"}}
    attempts = [Attempt(start(f"ramp {way}", RAMP, **layout)) for way, layout in ways.items()]
    for way, layout in ways.items():
        path = start(f"ramp {way} stopped", RAMP, **layout)
        attempts += [Attempt(path, 1, stop_at=4), Attempt(path, 2)]
    attempts += [
        Attempt(moved, 1, stop_at=2),
        Attempt(moved, 2, stop_at=4, job=job_of(data, gpus=2, **AVERAGE, dp_mode="zero1")),
        Attempt(moved, 3, job=job_of(data, gpus=2, **AVERAGE, pp=2, schedule="zbv")),
        Attempt(start("muon", MUON, pp=2)),
        *(Attempt(start(dtype, {"training": BF16 | {"reduce_dtype": dtype}})) for dtype in ("fp32", "bf16")),
    ]
    for told in run_world(several, attempts, timeout_s=500).results:
        assert [ending.step for ending in told] == [7, 7, 4, 7, 4, 7, 2, 4, 6, 10, 60, 60]
    return made


def close(run, other, rel=1e-5):
    assert len(run.steps()) == len(other.steps())
    for one, expected in zip(run.steps(), other.steps(), strict=True):
        assert one == pytest.approx(expected, rel=rel)


def same_values(run, other, step, kinds, atol):
    got, expected = tensors_of(run.run, step), tensors_of(other.run, step)
    names = [name for name in expected if name.startswith(kinds)]
    assert {name.partition("/")[0] + "/" for name in names} == set(kinds)
    for name in names:
        torch.testing.assert_close(got[name], expected[name], rtol=0, atol=atol, msg=name)


@pytest.mark.parametrize("way", ["pp", "dp"])
def test_a_growing_batch_goes_on_growing(data, alone, runs, way):
    straight, stopped = runs[f"ramp {way}"], runs[f"ramp {way} stopped"]
    training = job_of(data, **RAMP).training
    sizes = [global_batch_at(step, training) for step in range(1, 8)]
    assert sizes == [4, 4, 6, 6, 8, 8, 8], "it stops where the next step is larger"
    assert [e["tokens"] for e in straight.events("step")] == [16 * sum(sizes[:n]) for n in range(1, 8)]
    assert stopped.steps() == straight.steps()
    assert [e["tokens"] for e in stopped.events("step")] == [e["tokens"] for e in straight.events("step")]
    close(straight, alone["ramp"])


def test_the_moving_average_goes_through_three_layouts(alone, runs):
    run = runs["average"]
    assert [e["layout"]["tp"] for e in run.events("start")] == [2, 1, 1]
    close(run, alone["average"])
    same_values(run, alone["average"], 6, ("model/", "ema/", "optimizer/"), atol=2e-5)


def test_muon_over_a_pipeline(alone, runs):
    """Its orthogonal updates are made in bf16: rounding shows."""
    close(runs["muon"], alone["muon"], rel=1e-4)
    same_values(runs["muon"], alone["muon"], 10, ("model/",), atol=1e-3)


def test_gradients_that_travel_in_bf16_train_alike(runs):
    losses = {name: [loss for _, loss, _ in runs[name].steps()] for name in ("fp32", "bf16")}
    assert losses["fp32"] != losses["bf16"]
    assert losses["fp32"][0] == losses["bf16"][0] > 5
    final = {name: statistics.mean(told[-10:]) for name, told in losses.items()}
    assert final["fp32"] < 4
    assert final["bf16"] == pytest.approx(final["fp32"], rel=0.02)
