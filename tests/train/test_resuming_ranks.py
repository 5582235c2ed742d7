"""Whole runs of several ranks, with dropout, saved while they train and beside: whichever way they come back, not a bit differs."""

from __future__ import annotations

import pytest
import torch

from slurmtrain.store.aside import asides
from slurmtrain.store.listing import steps_present
from slurmtrain.store.origin import Origin
from tests.mpi_world import run_world
from tests.train.runs import make_data, make_run
from tests.train.several import Attempt, job_of, several, tensors_in

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

QUICK = {
    "fsdp, one file a node, beside": ({"dp_mode": "fsdp"}, {"mode": "async", "writers_per_node": 1}),
    "pp, standing still": ({"pp": 2}, {"verify": "sampled"}),
}
LONG = {
    "tp, beside": ({"tp": 2}, {"mode": "async"}),
    "zero1, one file a node, standing still": ({"dp_mode": "zero1"}, {"writers_per_node": 1}),
}
NAMES = [*QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in LONG)]
LAST = 6


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def job(data, name, steps=LAST):
    layout, checkpoint = {**QUICK, **LONG}[name]
    training = {"steps": steps, "micro_batch": 2}
    dropping = {"dropout": 0.2, "attention_dropout": 0.1}
    return job_of(data, sections={"checkpoint": checkpoint}, gpus=2, every=2, training=training, model=dropping, **layout)


def trained(data, folder, names):
    """{name: (a run that went back to step 2 at its end, one that was stopped in step 3 and went on, a branch of the first's step 4)}"""
    made, attempts = {}, []
    for name in names:
        whole, stopped, branch = (make_run(folder / f"{name} {what}", job(data, name)) for what in ("whole", "stopped", "branch"))
        made[name] = whole, stopped, branch
        attempts += [Attempt(whole.run.path, 1), Attempt(whole.run.path, 2, back_to=2)]
        attempts += [Attempt(stopped.run.path, 1, stop_at=3), Attempt(stopped.run.path, 2)]
        attempts += [Attempt(branch.run.path, 1, origin=Origin(whole.run.path, 4))]
    for told in run_world(several, attempts, timeout_s=240).results:
        assert [ending.step for ending in told] == [LAST, LAST, 3, LAST, LAST] * len(names)
    return made


@pytest.fixture(scope="module")
def quick(data, tmp_path_factory):
    return trained(data, tmp_path_factory.mktemp("quick"), QUICK)


@pytest.fixture(scope="module")
def long(data, tmp_path_factory):
    return trained(data, tmp_path_factory.mktemp("long"), LONG)


@pytest.fixture(params=NAMES)
def three(request):
    name = request.param
    return request.getfixturevalue("quick" if name in QUICK else "long")[name]


def same(folder, other):
    one, two = tensors_in(folder), tensors_in(other)
    assert one.keys() == two.keys()
    assert any(name.startswith("rng/") for name in one)
    assert [name for name in one if not torch.equal(one[name], two[name])] == []


def test_back_to_an_older_checkpoint(three):
    whole, _, _ = three
    assert steps_present(whole.run.checkpoints) == [2, 4, 6]
    assert whole.steps(2) == whole.steps(1)[2:]
    assert [one.step for one in asides(whole.run)] == [4, 6]
    for before in asides(whole.run):
        same(before.folder, whole.run.checkpoint(before.step))


def test_stopped_and_gone_on(three):
    whole, stopped, _ = three
    assert steps_present(stopped.run.checkpoints) == [2, 3, 4, 6]
    assert stopped.steps() == whole.steps(1)
    same(stopped.run.checkpoint(LAST), whole.run.checkpoint(LAST))


def test_a_branch(three):
    whole, _, branch = three
    assert branch.steps() == whole.steps(1)[4:]
    assert steps_present(branch.run.checkpoints) == [6]
    same(branch.run.checkpoint(LAST), whole.run.checkpoint(LAST))


def test_what_the_saves_tell(three, request):
    checkpoint = {**QUICK, **LONG}[request.node.callspec.params["three"]][1]
    for run in three:
        assert [event["step"] for event in run.events("save", 1)] in ([2, 4, 6], [2, 3], [6])
        assert all(0 < event["seconds"] <= event["write_s"] for event in run.events("save"))
        assert run.events("save_failed") == []
    assert len(list(three[0].run.checkpoint(LAST).glob("rank-*.h5"))) == checkpoint.get("writers_per_node", 2)
