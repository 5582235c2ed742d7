"""A run that comes back goes on as if it had never stopped, wherever it stopped (docs/cases.md)."""

from __future__ import annotations

import itertools

import pytest

from slurmtrain.train.loop import Ending
from slurmtrain.train.stopping import StopFlag
from tests.train.runs import make_data, make_job, make_run
from tests.train.solo import solo_loop, solo_world

STEPS = 8
TRAINING = {
    "fp32": {},
    "fp16": {"dtype": "fp16", "loss_scale": {"initial": 2.0**22, "growth_steps": 2}},
}
"""fp16 overflows at first: steps are skipped, and the scale has doubled before the run ends."""


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory):
    with solo_world(tmp_path_factory.mktemp("group")):
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def stopped_at(run, attempt, step):
    """Attempt number `attempt`, asked to stop while `step` is under way (None: never); where it ended."""
    flag = StopFlag()
    session, loop = solo_loop(run, attempt, flag)
    inner = session.built.runner.train

    def train(batch, scale):
        if session.progress.step + 1 == step:
            flag.given.add("requeue")
        return inner(batch, scale)

    session.built.runner.train = train
    return loop.run()


@pytest.mark.parametrize("dtype", TRAINING)
def test_five_steps_after_a_resume_have_the_losses_of_an_unbroken_run(data, tmp_path, dtype):
    """Stopped in the first step (in fp16 an overflow: nothing was ever updated or unscaled) and in the third; no difference at all."""
    job = make_job(data, gpus=1, training={"steps": STEPS, "micro_batch": 4} | TRAINING[dtype])
    straight, broken = make_run(tmp_path / "straight", job), make_run(tmp_path / "broken", job)
    assert stopped_at(straight, 1, None) == Ending("finished", STEPS)
    for attempt, step in ((1, 1), (2, 3)):
        assert stopped_at(broken, attempt, step) == Ending("stopped", step, "requeue")
    assert stopped_at(broken, 3, None) == Ending("finished", STEPS)
    keys = ("step", "loss", "grad_norm", "lr", "tokens") + (("scale", "skipped") if dtype == "fp16" else ())
    one, many = ([[e.get(key) for key in keys] for e in run.events("step")] for run in (straight, broken))
    assert len(broken.events("step", 3)) == 5
    assert many == one
    skips = [e["step"] for e in straight.events("skip")]
    if dtype == "fp16":
        scales = [e["scale"] for e in straight.events("step")]
        assert skips[0] == 1
        assert any(after == 2 * before for before, after in itertools.pairwise(scales))
        assert [e["step"] for e in broken.events("skip")] == skips
    else:
        assert skips == []
