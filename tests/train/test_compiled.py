"""Compiled layers train as uncompiled ones do, under the names that every checkpoint has."""

from __future__ import annotations

import pytest
import torch

from slurmtrain.train.loop import Ending
from tests.mpi_world import run_world
from tests.train.runs import make_data, make_run
from tests.train.several import Attempt, job_of, several, tensors_of
from tests.train.solo import solo_loop, solo_world

pytestmark = pytest.mark.slow

STEPS, STOP = 4, 2
LAYOUTS = {
    "tp2": ({"tp": 2}, {}),
    "tp2, recompute": ({"tp": 2}, {"recompute": "full", "recompute_every": 2}),
    "fsdp": ({"dp_mode": "fsdp"}, {}),
    "pp2": ({"pp": 2}, {}),
}


def job(data, layout, backend, gpus=2):
    parallel, training = layout
    numerics = {"steps": STEPS, "micro_batch": 2, "compile": backend, **training}
    return job_of(data, gpus=gpus, training=numerics, optimizer={"lr": 1e-3, "warmup_steps": 0}, **parallel)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """{layout: (as it is, compiled)}; a run that is compiled up to step 2 alone."""
    folder = tmp_path_factory.mktemp("runs")
    made = {
        layout: tuple(make_run(folder / f"{number}-{backend}", job(data, LAYOUTS[layout], backend)) for backend in ("off", "aot_eager"))
        for number, layout in enumerate(LAYOUTS)
    }
    attempts = [Attempt(run.run.path) for pair in made.values() for run in pair]
    half = make_run(folder / "half", job(data, LAYOUTS["tp2"], "aot_eager"))
    attempts += [Attempt(half.run.path, 1, STOP), Attempt(half.run.path, 2, job=job(data, LAYOUTS["tp2"], "off"))]
    for told in run_world(several, attempts, timeout_s=500).results:
        assert told[-2:] == [Ending("stopped", STOP, "requeue"), Ending("finished", STEPS)]
    return {**made, "half": (made["tp2"][0], half)}


def same(plain, compiled):
    assert len(plain.steps()) == STEPS
    assert [step for step, *_ in compiled.steps()] == [step for step, *_ in plain.steps()]
    for one, other in zip(plain.steps(), compiled.steps(), strict=True):
        assert other == pytest.approx(one, rel=1e-6)
    expected, found = (tensors_of(run.run, STEPS) for run in (plain, compiled))
    assert set(found) == set(expected)
    for name in (name for name in expected if name.startswith("model/")):
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-5)


@pytest.mark.mpi
@pytest.mark.parametrize("layout", [*LAYOUTS, "half"])
def test_trains_as_uncompiled(runs, layout):
    same(*runs[layout])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own, when it looks at inputs
def test_alone(data, tmp_path):
    with solo_world(tmp_path):
        runs = [make_run(tmp_path / backend, job(data, ({}, {}), backend, gpus=1)) for backend in ("off", "aot_eager")]
        for run in runs:
            assert solo_loop(run)[1].run() == Ending("finished", STEPS)
    same(*runs)
