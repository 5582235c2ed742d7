"""With dropout, recompute and `deterministic`: a run repeats bit for bit, and so does one that is stopped on the way."""

from __future__ import annotations

import pytest
import torch

from slurmtrain.train.loop import Ending
from tests.mpi_world import run_world
from tests.train.runs import make_data, make_run
from tests.train.several import Attempt, job_of, several, tensors_of

pytestmark = [pytest.mark.mpi, pytest.mark.long]

STEPS, STOP = 5, 3
LAYOUTS = {
    "dp2 zero1, bf16": ({"dp_mode": "zero1"}, {"dtype": "bf16"}),
    "dp2 fsdp": ({"dp_mode": "fsdp"}, {}),
    "tp2, fp16": ({"tp": 2}, {"dtype": "fp16"}),
    "cp2 ulysses": ({"cp": 2, "cp_mode": "ulysses"}, {}),
    "pp2 zbv": ({"pp": 2, "schedule": "zbv"}, {}),
}


def job(data, layout):
    parallel, training = LAYOUTS[layout]
    numerics = {"steps": STEPS, "micro_batch": 2, "recompute": "full", "deterministic": True, "ema_decay": 0.9, **training}
    return job_of(data, gpus=2, model={"dropout": 0.1, "attention_dropout": 0.1}, training=numerics, **parallel)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """{layout: (run, the same again, the same stopped and taken up)}."""
    folder = tmp_path_factory.mktemp("runs")
    data = make_data(folder)
    made = {
        layout: tuple(make_run(folder / f"{number}-{kind}", job(data, layout)) for kind in ("straight", "again", "stopped"))
        for number, layout in enumerate(LAYOUTS)
    }
    attempts = []
    for straight, again, stopped in made.values():
        attempts += [Attempt(straight.run.path), Attempt(again.run.path), Attempt(stopped.run.path, 1, STOP), Attempt(stopped.run.path, 2)]
    finished, stopped_early = Ending("finished", STEPS), Ending("stopped", STOP, "requeue")
    for told in run_world(several, attempts, timeout_s=400).results:
        assert told == [finished, finished, stopped_early, finished] * len(made)
    return made


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("other", ["again", "stopped"])
def test_repeats_bit_for_bit(runs, layout, other):
    straight, again, stopped = runs[layout]
    got = again if other == "again" else stopped
    assert got.steps() == straight.steps()
    assert len(straight.steps()) == STEPS
    expected, found = (tensors_of(run.run, STEPS) for run in (straight, got))
    assert set(found) == set(expected)
    assert {name.partition("/")[0] for name in expected} == {"model", "optimizer", "ema", "rng"}
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_rank_drew_numbers_of_its_own(runs, layout):
    """Without that nothing above would say anything of dropout."""
    *_, stopped = runs[layout]
    early, late = (
        {name: tensor for name, tensor in tensors_of(stopped.run, step).items() if name.startswith("rng/")} for step in (STOP, STEPS)
    )
    assert len(early) == 2
    assert not any(torch.equal(early[name], late[name]) for name in early), "drawn between the two steps"
    first, second = late.values()
    assert not torch.equal(first, second)
