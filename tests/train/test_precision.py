"""bf16 and fp16 train as fp32 does; an fp16 run that is stopped at any step goes on with the same scale and skips the same steps."""

from __future__ import annotations

import itertools
import statistics
import sysconfig
from pathlib import Path

import pytest

from slurmtrain.data.build import build
from slurmtrain.train.loop import Ending
from slurmtrain.train.stopping import StopFlag
from tests.train.runs import make_data, make_run
from tests.train.several import job_of
from tests.train.solo import solo_loop, solo_world

TINY = {"layers": 4, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 192, "vocab": 320, "rope_theta": 10000.0}
"""The shape and the training of examples/tiny-llama.toml."""
STEPS = 300
EXAMPLE = {"steps": STEPS, "sequence_length": 64, "global_batch": 8, "micro_batch": 4, "clip_norm": 1.0}
MODULES = ("argparse", "ast", "calendar", "configparser", "csv", "datetime", "decimal", "difflib", "dis", "doctest")


@pytest.fixture(scope="module", autouse=True)
def world(tmp_path_factory):
    with solo_world(tmp_path_factory.mktemp("group")):
        yield


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    """Tokens of some modules of the standard library."""
    library = Path(sysconfig.get_path("stdlib"))
    found = [path for name in MODULES if (path := library / f"{name}.py").is_file()]
    assert len(found) > 5
    return build(found, tmp_path_factory.mktemp("code") / "tokens").folder


def final_loss(folder, code, **training):
    run = make_run(
        folder, job_of(code, model=TINY, training=EXAMPLE | training, optimizer={"lr": 3e-3, "min_lr": 3e-4, "warmup_steps": 20})
    )
    assert solo_loop(run)[1].run() == Ending("finished", STEPS)
    losses = [loss for _, loss, _ in run.steps()]
    assert losses[0] > 5.5, "ln 320 = 5.77 at the start"
    return statistics.mean(losses[-20:])


@pytest.fixture(scope="module")
def fp32(code, tmp_path_factory):
    loss = final_loss(tmp_path_factory.mktemp("fp32") / "run", code)
    assert loss < 3.0
    return loss


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_converges_as_fp32_does(fp32, code, tmp_path, dtype):
    assert final_loss(tmp_path / "run", code, dtype=dtype) == pytest.approx(fp32, rel=0.02)


TOLD = ("step", "loss", "grad_norm", "lr", "scale", "skipped", "tokens")


def test_fp16_stopped_after_each_step_is_the_run_that_was_not(tmp_path):
    """Cases 52 and 54: overflows, a doubling, an overflow again: scale, skips, schedule and losses are the same bits."""
    training = {"steps": 9, "micro_batch": 4, "dtype": "fp16", "loss_scale": {"initial": 2.0**24, "growth_steps": 2}, "clip_norm": 0.5}
    job = job_of(make_data(tmp_path), training=training)
    straight, pieces = make_run(tmp_path / "straight", job), make_run(tmp_path / "pieces", job)
    solo_loop(straight)[1].run()
    for attempt in range(1, 10):
        flag = StopFlag()
        flag.given.add("requeue")
        ending = solo_loop(pieces, attempt, flag)[1].run()
        assert ending == (Ending("stopped", attempt, "requeue") if attempt < 9 else Ending("finished", 9))
    expected, got = ([{key: e.get(key) for key in TOLD} for e in run.events("step")] for run in (straight, pieces))
    assert got == expected
    skipped = [bool(e["skipped"]) for e in expected]
    scales = [e["scale"] for e in expected]
    assert skipped[:2] == [True, True]
    assert any(later == 2 * earlier for earlier, later in itertools.pairwise(scales))
    assert any(after and not before for before, after in itertools.pairwise(skipped)), "a doubling that went too far"
