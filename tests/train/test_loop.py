"""One rank's way through a run: events, checkpoints, stops, refusals, resume; bit for bit."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

from slurmtrain.errors import ConfigError, NonFiniteError, OwnershipError
from slurmtrain.resilience.records import Owner
from slurmtrain.store.listing import steps_present
from slurmtrain.train.loop import Ending
from slurmtrain.train.stopping import StopFlag
from tests.train.runs import make_data, make_job, make_run
from tests.train.solo import solo_loop, solo_world

STEPS = {"steps": 7, "micro_batch": 4}


@pytest.fixture(scope="module", autouse=True)
def world(tmp_path_factory):
    with solo_world(tmp_path_factory.mktemp("group")):
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    run = make_run(tmp_path_factory.mktemp("runs") / "undisturbed", make_job(data, gpus=1, training=STEPS, every=3))
    _, loop = solo_loop(run)
    assert loop.run() == Ending("finished", 7)
    return run


def at_step(session, number, deed):
    """Do something while step `number` is under way."""
    runner = session.built.runner
    inner = runner.train

    def train(batch, scale):
        if session.progress.step + 1 == number:
            deed()
        return inner(batch, scale)

    runner.train = train


def test_events_and_checkpoints_of_a_run(undisturbed):
    assert steps_present(undisturbed.run.checkpoints) == [3, 6, 7]
    steps = undisturbed.events("step")
    assert [e["step"] for e in steps] == list(range(1, 8))
    assert [e["tokens"] for e in steps] == [8 * 16 * n for n in range(1, 8)]
    assert all(e["step_s"] > 0 for e in steps)
    assert steps[0]["lr"] == pytest.approx(1e-2 / 3)
    (start,) = undisturbed.events("start")
    assert start["world"] == 1
    assert start["resumed_from"] is None
    assert [e["step"] for e in undisturbed.events("save")] == [3, 6, 7]
    assert all(e["bytes"] > 100_000 for e in undisturbed.events("save"))
    assert undisturbed.events("finish") == [{"step": 7}]


def test_each_step_tells_the_figures_of_the_one_before(undisturbed):
    steps = undisturbed.events("step", 1)
    assert "previous" not in steps[0]
    assert [e["previous"]["step"] for e in steps[1:]] == list(range(1, 7))
    assert [e["previous"]["loss_max"] for e in steps[1:]] == pytest.approx([e["loss"] for e in steps[:-1]], rel=1e-12)
    saved = {e["step"] for e in undisturbed.events("save", 1)}
    assert {e["previous"]["step"] for e in steps[1:] if "checkpoint_s" in e["previous"]} == saved - {7}
    for before, event in itertools.pairwise(steps):
        figures = event["previous"]
        parts = sum(figures[f"{phase}_s"] for phase in ("data", "forward_backward", "reduction", "optimizer", "publish"))
        assert 0 < parts <= before["step_s"], "phases lie inside their step"
        assert figures["slowest"]["work_s"] <= figures["forward_backward_s"] + figures["optimizer_s"] + figures["publish_s"] + 1e-5
        assert figures["memory_bytes"] > 50e6
        assert event["tokens_per_s"] == pytest.approx(8 * 16 / event["step_s"], rel=1e-4)
    assert "mfu" not in steps[0], "nobody knows the peak of this machine"


def test_no_steps_save_the_first_values(data, tmp_path):
    run = make_run(tmp_path / "run", make_job(data, gpus=1, training=STEPS | {"steps": 0}))
    session, loop = solo_loop(run)
    first = [p.tensor.clone() for p in session.built.parameters]
    assert loop.run() == Ending("finished", 0)
    assert steps_present(run.run.checkpoints) == [0]
    session, loop = solo_loop(run, 2)
    assert all(torch.equal(a, p.tensor) for a, p in zip(first, session.built.parameters, strict=True))
    assert loop.run() == Ending("finished", 0)
    assert len(run.events("save")) == 1


def test_a_step_that_overflows_is_skipped_and_told(data, tmp_path):
    """2^26 times gradients of some 0.1 leave fp16: halved until they fit; the schedule waits for the first update."""
    training = STEPS | {"steps": 14, "dtype": "fp16", "loss_scale": {"initial": 2.0**26}}
    run = make_run(tmp_path / "run", make_job(data, gpus=1, training=training))
    session, loop = solo_loop(run)
    loop.run()
    steps, skips = run.events("step"), run.events("skip")
    assert [e["step"] for e in steps] == list(range(1, 15))
    trained = [e for e in steps if "skipped" not in e]
    assert skips[0]["step"] == 1
    assert 2 <= len(skips) <= 12
    assert [e["step"] for e in skips] == [e["step"] for e in steps if e.get("skipped")]
    assert [(e["scale"], e["next_scale"]) for e in skips] == [(2.0 ** (26 - i), 2.0 ** (25 - i)) for i in range(len(skips))]
    assert [e["scale"] for e in steps] == [2.0 ** (26 - sum(skip["step"] < e["step"] for skip in skips)) for e in steps]
    assert session.optimizer.updates == len(trained) == 14 - len(skips)
    assert [e["lr"] for e in trained[:2]] == pytest.approx([1e-2 / 3, 2e-2 / 3])


def test_a_growing_batch(data, tmp_path):
    ramp = {"start": 4, "increment": 2, "samples": 12}
    run = make_run(tmp_path / "run", make_job(data, gpus=1, training={"steps": 5, "micro_batch": 2, "batch_ramp": ramp}))
    session, loop = solo_loop(run)
    loop.run()
    # Spans of 6 samples: steps of 4, 4 (from sample 4), then 6 (from 8), then 8 (from 14).
    sizes = [4, 4, 6, 8, 8]
    assert [e["tokens"] for e in run.events("step")] == [16 * sum(sizes[: n + 1]) for n in range(5)]
    assert session.progress.position == sum(sizes)
    rates = [e["tokens_per_s"] * e["step_s"] for e in run.events("step")]
    assert rates == pytest.approx([16 * size for size in sizes], rel=1e-4)


def test_stop_saves_at_the_end_of_the_step_and_resume_repeats_nothing(undisturbed, data, tmp_path):
    run = make_run(tmp_path / "run", make_job(data, gpus=1, training=STEPS, every=3))
    flag = StopFlag()
    session, loop = solo_loop(run, 1, flag)
    at_step(session, 5, lambda: flag.given.add("requeue"))
    assert loop.run() == Ending("stopped", 5, "requeue")
    assert steps_present(run.run.checkpoints) == [3, 5]
    assert run.events("stop") == [{"step": 5, "reason": "requeue"}]
    session, loop = solo_loop(run, 2)
    assert (session.resumed.step, session.progress.position) == (5, 40)
    assert loop.run() == Ending("finished", 7)
    assert run.steps() == undisturbed.steps()  # losses and norms of 1..7, equal bit for bit
    assert [e["tokens"] for e in run.events("step")] == [e["tokens"] for e in undisturbed.events("step")]
    assert run.events("load")[0]["passed_over"] == []


def test_a_broken_checkpoint_is_passed_over_with_the_reason(undisturbed, data, tmp_path):
    run = make_run(tmp_path / "run", make_job(data, gpus=1, training=STEPS, every=3))
    _, loop = solo_loop(run, 1)
    loop.run()
    for step in (6, 7):
        victim = run.run.checkpoint(step) / "rank-00000.h5"
        victim.write_bytes(victim.read_bytes()[:-100])
    _, loop = solo_loop(run, 2)
    loop.run()
    (load,) = run.events("load", 2)
    assert load["step"] == 3
    assert [step for step, _ in load["passed_over"]] == [7, 6]
    assert run.steps(2) == undisturbed.steps()[3:]


def test_a_finished_run_trains_no_more(undisturbed):
    before = len(undisturbed.events("step"))
    _, loop = solo_loop(undisturbed, 2)
    assert loop.run() == Ending("finished", 7)
    assert len(undisturbed.events("step")) == before


def test_nan_stops_before_the_update_and_names_the_last_checkpoint(data, tmp_path):
    run = make_run(tmp_path / "run", make_job(data, gpus=1, training=STEPS, every=3))
    session, loop = solo_loop(run)
    moments = session.optimizer.states()["exp_avg"][0]

    def poison():
        session.built.parameters[1].tensor[0] = torch.nan
        poison.before = moments.clone()

    at_step(session, 5, poison)
    with pytest.raises(NonFiniteError, match=r"step 5: loss nan.*last durable checkpoint: step 3"):
        loop.run()
    assert torch.equal(moments, poison.before)
    assert steps_present(run.run.checkpoints) == [3]
    assert "step 5" in run.events("error")[0]["error"]


@pytest.mark.parametrize("when", ["seen by the watcher", "seen at the save"])
def test_another_owner_means_leaving_without_saving(data, tmp_path, when):
    run = make_run(tmp_path / "run", make_job(data, gpus=1, training=STEPS, every=3))
    flag = StopFlag()
    session, loop = solo_loop(run, 1, flag)

    def steal():
        run.run.owner_json.write_bytes(Owner("13", 0, 2, "n2", 1, 0.0).to_json())
        flag.disowned = when == "seen by the watcher"

    at_step(session, 2, steal)
    with pytest.raises(OwnershipError):
        loop.run()
    assert steps_present(run.run.checkpoints) == []
    assert run.steps()[-1][0] == (2 if when == "seen by the watcher" else 3)


def test_a_vocabulary_smaller_than_the_data_is_refused_at_start(data, tmp_path):
    run = make_run(tmp_path / "run", make_job(data, gpus=1, model={"vocab": 256}))
    with pytest.raises(ConfigError, match=r"model\.vocab = 256: .* vocabulary of 257: use 257 or more"):
        solo_loop(run)


@pytest.mark.parametrize(("change", "key"), [({"seed": 4}, "training.seed"), ({"sequence_length": 32}, "training.sequence_length")])
def test_resume_on_other_samples_is_refused(undisturbed, data, tmp_path, change, key):
    other = make_run(tmp_path / "run", make_job(data, gpus=1, training=STEPS | change))
    other.run.checkpoints.rmdir()
    other.run.checkpoints.symlink_to(undisturbed.run.checkpoints)
    with pytest.raises(ConfigError, match=key):
        solo_loop(other)


def test_a_new_learning_rate_takes_effect_on_resume(undisturbed, data, tmp_path):
    job = make_job(data, gpus=1, training=STEPS | {"steps": 9}, optimizer={"lr": 5e-3, "min_lr": 5e-3, "warmup_steps": 0})
    other = make_run(tmp_path / "run", job)
    other.run.checkpoints.rmdir()
    other.run.checkpoints.symlink_to(undisturbed.run.checkpoints)
    session, loop = solo_loop(other, 3)
    assert session.progress.step == 7
    loop.run()
    assert [e["lr"] for e in other.events("step")] == [5e-3, 5e-3]


def test_epochs_are_longer_than_the_data(data, tmp_path):
    """Some 49,000 tokens are 1,531 samples of 32: with 512 a step the third step reaches into a new epoch."""
    training = {"steps": 5, "sequence_length": 32, "global_batch": 512, "micro_batch": 512}
    run = make_run(tmp_path / "run", make_job(data, gpus=1, training=training, model={"layers": 1, "hidden": 16, "ffn": 16}))
    tokens = json.loads((data / "index.json").read_text())["tokens"]
    assert 2 * 512 < tokens // 32 < 3 * 512
    session, loop = solo_loop(run)
    assert loop.run() == Ending("finished", 5)
    assert session.progress.position == 5 * 512
