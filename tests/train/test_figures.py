"""What runs of two ranks tell of themselves, beside one process: tokens, evaluation, waits by axis, the bubble of a pipeline."""

from __future__ import annotations

import pytest

from slurmtrain.config.job import JobConfig
from tests.train.runs import make_data, make_job, make_run

pytestmark = [pytest.mark.mpi, pytest.mark.long]

LAYOUTS = {
    "alone": {},
    "dp2": {"dp": 2},
    "cp2": {"cp": 2},
    "tp2": {"tp": 2},
    "pp2": {"pp": 2},
    "zbv": {"pp": 2, "schedule": "zbv"},
}
"""Accumulation over 4 micro-batches (2 under dp2): validation must not know of it."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    data, made = make_data(tmp_path_factory.mktemp("data")), {}
    for name, layout in LAYOUTS.items():
        gpus = 2 if layout else 1
        plain = make_job(data, gpus=gpus, training={"steps": 4, "micro_batch": 2}, **layout).model_dump()
        evaluation = {"sets": {"held-out": str(data)}, "every_steps": 2, "batches": 2, "first": True}
        job = JobConfig.model_validate({**plain, "evaluation": evaluation, "metrics": {"profile": [2, 2]}})
        run = make_run(tmp_path_factory.mktemp("runs") / name, job)
        run.attempt(1)
        made[name] = run
    return made


def previous(run):
    return [event["previous"] for event in run.events("step")[1:]]


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "alone"])
def test_losses_and_tokens_are_those_of_one_process(runs, name):
    """Cases 6 and 10: tokens counted once whatever cp is, the validation loss that of one process, before training too."""
    one, many = runs["alone"], runs[name]
    for kind, number in (("step", "loss"), ("eval", "eval_loss")):
        expected, got = one.events(kind), many.events(kind)
        assert [e["step"] for e in got] == [e["step"] for e in expected]
        assert [e["tokens"] for e in got] == [e["tokens"] for e in expected]
        assert [e[number] for e in got] == pytest.approx([e[number] for e in expected], rel=1e-5)
    assert [e["tokens"] for e in one.events("step")] == [128, 256, 384, 512]
    assert [e["tokens"] for e in one.events("eval")] == [256] * 3


@pytest.mark.parametrize(("name", "axis"), [("dp2", "dp_cp"), ("cp2", "cp"), ("tp2", "tp")])
def test_waits_are_told_by_axis(runs, name, axis):
    for figures in previous(runs[name]):
        assert figures["wait_s"][axis] > 0
        assert sum(figures["wait_s"].values()) <= figures["forward_backward_s"] + figures["publish_s"]
        assert not set(figures["wait_s"]) - {axis, "dp_cp", "shard"}
    assert all(figures["wait_s"] == {} for figures in previous(runs["alone"]))


def test_the_largest_loss_of_a_rank(runs):
    """Two data-parallel ranks with as many tokens each: the larger of two means whose mean is the loss."""
    for event, figures in zip(runs["dp2"].events("step"), previous(runs["dp2"]), strict=False):
        assert figures["loss_max"] > event["loss"]
    for event, figures in zip(runs["pp2"].events("step"), previous(runs["pp2"]), strict=False):
        assert figures["loss_max"] == pytest.approx(event["loss"], rel=1e-12), "one rank alone has the loss"


def test_the_bubble_beside_the_formula(runs):
    """1F1B over p = 2, m = 4: (p - 1) / (m + p - 1) = 1/5; with stages in a V less."""
    (start,) = runs["pp2"].events("start")
    assert (start["schedule"], start["vp"], start["expected_bubble"]) == ("1f1b", 1, 0.2)
    (start,) = runs["zbv"].events("start")
    assert (start["schedule"], start["vp"]) == ("zbv", 2)
    assert 0 < start["expected_bubble"] < 0.2
    for name in ("pp2", "zbv"):
        assert all(0 < figures["bubble"] < 1 for figures in previous(runs[name]))
    assert "expected_bubble" not in runs["dp2"].events("start")[0]
    assert all("bubble" not in figures for figures in previous(runs["dp2"]))


def test_each_rank_leaves_a_trace(runs):
    for name, run in runs.items():
        ranks = 1 if name == "alone" else 2
        assert [run.run.trace(1, rank).is_file() for rank in range(2)] == [rank < ranks for rank in range(2)]
