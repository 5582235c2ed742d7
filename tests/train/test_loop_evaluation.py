"""Evaluation, targets, curves and profiles of a whole run of one rank."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from torch.nn import functional

from slurmtrain.atomic import SystemDisk
from slurmtrain.config.job import JobConfig
from slurmtrain.models.decoder import Decoder
from slurmtrain.resilience.records import AttemptRecord, write_attempt
from slurmtrain.store.listing import steps_present
from slurmtrain.train.loop import Ending
from slurmtrain.train.stopping import StopFlag
from tests.train.runs import make_data, make_job, make_run
from tests.train.solo import solo_loop, solo_world

STEPS = {"steps": 6, "micro_batch": 4}


@pytest.fixture(scope="module", autouse=True)
def world(tmp_path_factory):
    with solo_world(tmp_path_factory.mktemp("group")):
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def job_with(data, *, every=100, training=None, **sections) -> JobConfig:
    plain = make_job(data, gpus=1, training=STEPS | (training or {}), every=every).model_dump()
    return JobConfig.model_validate({**plain, **sections})


def evaluated(data, **more):
    return {"evaluation": {"sets": {"held-out": str(data), "again": str(data)}, "every_steps": 2, "batches": 3, **more}}


def shown(events, *keys):
    return [tuple(event[key] for key in keys) for event in events]


def mean_loss(session, data, samples):
    """By torch's own cross-entropy over the whole model in one piece, on the first samples of the tokens in their order."""
    model = Decoder(session.job.model)
    values = {part.name: p.tensor[tuple(slice(a, b) for a, b in part.region)] for p in session.built.parameters for part in p.parts}
    model.load_state_dict(values)
    dtype = json.loads((data / "index.json").read_text())["dtype"]
    tokens = torch.from_numpy(np.fromfile(data / "tokens.bin", dtype, samples * 16 + 1).astype(np.int64))
    inputs, labels = tokens[:-1].view(samples, 16), tokens[1:].view(samples, 16)
    with torch.no_grad():
        return float(functional.cross_entropy(model(inputs).flatten(0, 1).double(), labels.flatten()))


def test_sets_on_their_interval_and_before_the_first_step(data, tmp_path):
    run = make_run(tmp_path / "run", job_with(data, **evaluated(data, first=True)))
    session, loop = solo_loop(run)
    before = mean_loss(session, data, 3 * 8)
    loop.run()
    evals = run.events("eval")
    assert shown(evals, "step", "set") == [(step, name) for step in (0, 2, 4, 6) for name in ("again", "held-out")]
    assert shown(evals, "tokens") == [(3 * 8 * 16,)] * 8
    assert evals[0]["eval_loss"] == pytest.approx(before, rel=1e-6)
    assert evals[-1]["eval_loss"] == pytest.approx(mean_loss(session, data, 3 * 8), rel=1e-6)
    assert all(e["seconds"] > 0 for e in evals)
    steps = run.events("step")
    assert {e["previous"]["step"] for e in steps[1:] if "evaluation_s" in e["previous"]} == {2, 4}


def test_the_loss_does_not_depend_on_the_micro_batch_and_training_not_on_evaluation(data, tmp_path):
    """Case 6, and that an evaluation leaves no trace in training, dropout included."""
    model = {"model": make_job(data).model.model_dump() | {"dropout": 0.1}}
    told = {}
    for name, micro, sections in (("one", 8, evaluated(data)), ("many", 1, evaluated(data)), ("none", 8, {})):
        run = make_run(tmp_path / name, job_with(data, training={"micro_batch": micro, "steps": 4}, **sections, **model))
        _, loop = solo_loop(run)
        loop.run()
        told[name] = run
    assert told["one"].steps() == told["none"].steps()
    first = [shown(told[name].events("eval"), "eval_loss", "tokens") for name in ("one", "many")]
    assert first[0][0][1] == first[1][0][1]
    # Masks differ with the micro-batch, so that weights differ after training: the values of step 0 are compared below.
    for name, micro in (("a", 8), ("b", 2)):
        run = make_run(tmp_path / name, job_with(data, training={"micro_batch": micro, "steps": 0}, **evaluated(data, first=True), **model))
        solo_loop(run)[1].run()
        told[name] = shown(run.events("eval"), "eval_loss", "tokens")
    assert told["a"] == [(pytest.approx(loss, rel=1e-7), tokens) for loss, tokens in told["b"]]


def test_a_stop_in_an_evaluation_saves_and_the_next_attempt_begins_with_it(data, tmp_path):
    job = job_with(data, **evaluated(data))
    straight, stopped = make_run(tmp_path / "straight", job), make_run(tmp_path / "stopped", job)
    solo_loop(straight)[1].run()
    flag = StopFlag()
    session, loop = solo_loop(stopped, 1, flag)
    inner = session.built.runner.evaluate

    def evaluate(batch):
        if session.progress.step == 4:
            flag.given.add("requeue")
        return inner(batch)

    session.built.runner.evaluate = evaluate
    assert loop.run() == Ending("stopped", 4, "requeue")
    assert steps_present(stopped.run.checkpoints) == [4]
    assert {e["step"] for e in stopped.events("eval", 1)} == {2}
    assert solo_loop(stopped, 2)[1].run() == Ending("finished", 6)
    assert stopped.steps() == straight.steps()
    keys = ("step", "set", "eval_loss", "tokens")
    assert shown(stopped.events("eval"), *keys) == shown(straight.events("eval"), *keys)


def test_a_target_ends_the_run_and_says_what_it_took(data, tmp_path):
    job = job_with(data, training={"steps": 50}, target={"metric": "loss", "below": 5.0, "times": 2, "stop": True})
    run = make_run(tmp_path / "run", job)
    run.run.attempt(1).create()
    session, loop = solo_loop(run)
    write_attempt(run.run, SystemDisk(), AttemptRecord(1, "", 0, loop._clock.time() - 500.0, ("n1",), (), 1, 1, "3.11", {}, "0.1.0", None))
    ending = loop.run()
    losses = [e["loss"] for e in run.events("step")]
    first = next(n for n in range(2, 51) if losses[n - 2] < 5.0 and losses[n - 1] < 5.0)
    assert ending == Ending("finished", first, "target")
    (target,) = run.events("target")
    assert (target["step"], target["metric"], target["below"], target["value"]) == (first, "loss", 5.0, losses[-1])
    assert target["tokens"] == 128 * first
    assert 500 < target["elapsed_s"] < 600
    a_moment = 1.0  # by which the loop is older than its record
    assert sum(e["step_s"] for e in run.events("step")) <= target["train_s"] <= target["elapsed_s"] - 500 + a_moment
    assert target["gpu_hours"] == pytest.approx(target["train_s"] / 3600, abs=1e-5)
    assert run.events("finish") == [{"step": first, "reason": "target"}]
    assert steps_present(run.run.checkpoints) == [first]
    session, loop = solo_loop(run, 2)
    assert session.progress.seconds == pytest.approx(target["train_s"], abs=1.0)
    assert loop.run() == Ending("finished", first, "target"), "a run that was there already does not go on"
    assert len(run.events("target")) == 1


def test_a_target_on_a_set_without_stop_is_told_once(data, tmp_path):
    target = {"metric": "held-out", "below": 5.0, "times": 2}
    run = make_run(tmp_path / "run", job_with(data, training={"steps": 12}, target=target, **evaluated(data)))
    assert solo_loop(run)[1].run() == Ending("finished", 12)
    losses = [(e["step"], e["eval_loss"]) for e in run.events("eval") if e["set"] == "held-out"]
    below = [step for (_, before), (step, loss) in itertools.pairwise(losses) if before < 5.0 and loss < 5.0]
    assert shown(run.events("target"), "step") == [(below[0],)]


def test_curves_and_traces_of_a_run(data, tmp_path):
    pytest.importorskip("tensorboard")
    run = make_run(
        tmp_path / "run", job_with(data, metrics={"tensorboard": True, "profile": [2, 3], "peak_tflops": 0.001}, **evaluated(data))
    )
    solo_loop(run)[1].run()
    assert run.events("note") == []
    assert run.run.trace(1, 0).stat().st_size > 1000
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    (file,) = run.run.tensorboard.iterdir()
    scalars = {(e.step, v.tag): v.tensor.float_val[0] for e in EventFileLoader(str(file)).Load() for v in e.summary.value}
    for event in run.events("step"):
        assert scalars[event["step"], "loss"] == pytest.approx(event["loss"], rel=1e-6)
        # One device, 1 GFLOP/s: MFU = FLOPs of the step / its seconds / 10^9.
        (start,) = run.events("start")
        assert event["mfu"] == pytest.approx(128 * start["flops_per_token"] / event["step_s"] / 1e9, rel=1e-3)
    assert {step for step, tag in scalars if tag == "eval/held-out"} == {2, 4, 6}
    assert {step for step, tag in scalars if tag == "time/forward_backward_s"} == {1, 2, 3, 4, 5}


def test_without_the_packages_a_note_and_no_more(data, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    run = make_run(tmp_path / "run", job_with(data, metrics={"tensorboard": True, "wandb": "project"}))
    assert solo_loop(run)[1].run() == Ending("finished", 6)
    notes = sorted(text for (text,) in shown(run.events("note"), "text"))
    assert [note.split(":")[0] for note in notes] == ["tensorboard gets no more", "wandb gets no more"]
    assert len(run.events("step")) == 6
