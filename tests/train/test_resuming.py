"""How a run begins: with its newest checkpoint, an older one, another run's, or another run's weights; and what it tells of that."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch

from slurmtrain import __version__
from slurmtrain.checkpoint.group import SoloGroup
from slurmtrain.clock import SystemClock
from slurmtrain.config.changes import stored
from slurmtrain.errors import CheckpointError, ConfigError, NonFiniteError
from slurmtrain.rundir import RunDir
from slurmtrain.runtime.world import Standing
from slurmtrain.store.aside import asides, set_aside
from slurmtrain.store.leases import leased
from slurmtrain.store.listing import steps_present
from slurmtrain.store.origin import Origin, hold
from slurmtrain.store.verify import read_manifest
from slurmtrain.train.loop import Ending, Loop
from slurmtrain.train.provenance import made_by
from slurmtrain.train.stopping import StopFlag
from tests.fakes.saver import FakeSaver
from tests.train.runs import MODEL, make_data, make_job, make_run
from tests.train.several import tensors_of
from tests.train.solo import solo_loop, solo_world

STEPS = {"steps": 6, "micro_batch": 4}
DROPPING = {"dropout": 0.2, "attention_dropout": 0.1}


@pytest.fixture(scope="module", autouse=True)
def world(tmp_path_factory):
    with solo_world(tmp_path_factory.mktemp("group")):
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def job_of(data, *, checkpoint=None, evaluation=None, **more):
    job = make_job(data, gpus=1, **{"training": STEPS, "model": DROPPING, "every": 2, **more})
    job = job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update=checkpoint or {})})
    return job if evaluation is None else job.model_copy(update={"evaluation": job.evaluation.model_copy(update=evaluation)})


def run_of(folder, job, origin=None):
    run = make_run(folder, job)
    if origin is not None:
        run.run.origin_json.write_bytes(origin.to_json())
    return run


def trained(run, attempt=1, flag=None):
    session, loop = solo_loop(run, attempt, flag)
    loop.run()
    return session


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    """With checkpoints of steps 2, 4 and 6; nobody changes it."""
    held = {"sets": {"held": data}, "every_steps": 2, "batches": 1}
    run = run_of(tmp_path_factory.mktemp("undisturbed") / "run", job_of(data, evaluation=held))
    trained(run)
    return run


def same(run, other, steps):
    return [told for told in run.steps() if told[0] in steps] == [told for told in other.steps() if told[0] in steps] != []


def copied(run, folder):
    shutil.copytree(run.run.path, folder)
    return replace(run, run=RunDir(folder))


def test_a_checkpoint_tells_what_made_it(data, undisturbed):
    job = job_of(data, evaluation={"sets": {"held": data}, "every_steps": 2, "batches": 1})
    state = read_manifest(undisturbed.run.checkpoint(6)).state
    assert state["job"] == json.loads(json.dumps(stored(job)))
    assert state["versions"]["slurmtrain"] == __version__
    assert state["versions"]["torch"] == torch.__version__
    assert set(state["versions"]) == {"slurmtrain", "torch", "numpy", "python"}
    assert state["code"] is None, "its code/ is empty"
    told = {event["set"]: event["eval_loss"] for event in undisturbed.events("eval")}
    assert state["metrics"] == {"loss": undisturbed.events("step")[-1]["loss"], "held": told["held"]}


def test_the_sum_of_the_code_follows_names_and_contents(data, tmp_path):
    def digest():
        return made_by(RunDir(tmp_path), job_of(data), SoloGroup())["code"]

    assert digest() is None
    (tmp_path / "code" / "inner").mkdir(parents=True)
    (tmp_path / "code" / "a.py").write_text("one")
    first = digest()
    (tmp_path / "code" / "__pycache__").mkdir()
    (tmp_path / "code" / "__pycache__" / "a.pyc").write_text("x")
    assert digest() == first
    (tmp_path / "code" / "a.py").write_text("two")
    second = digest()
    (tmp_path / "code" / "a.py").rename(tmp_path / "code" / "inner" / "a.py")
    assert len({first, second, digest()}) == 3
    (tmp_path / "code").rename(tmp_path / "elsewhere")
    (tmp_path / "code").symlink_to(tmp_path / "elsewhere")
    assert digest() is None


def test_beside_the_training_and_back_bit_for_bit(data, undisturbed, tmp_path):
    """Saved by a process of its own while training goes on; stopped in step 5, with dropout."""
    run = run_of(tmp_path / "run", job_of(data, checkpoint={"mode": "async"}))
    flag = StopFlag()
    session, loop = solo_loop(run, 1, flag)
    inner = session.built.runner.train

    def train(batch, scale):
        flag.given |= {"requeue"} if session.progress.step == 4 else set()
        return inner(batch, scale)

    session.built.runner.train = train
    assert loop.run() == Ending("stopped", 5, "requeue")
    assert steps_present(run.run.checkpoints) == [2, 4, 5]
    saves = run.events("save")
    assert [event["step"] for event in saves] == [2, 4, 5]
    assert all(0 < event["seconds"] <= event["write_s"] for event in saves)
    trained(run, 2)
    assert same(run, undisturbed, range(1, 7))
    expected, got = tensors_of(undisturbed.run, 6), tensors_of(run.run, 6)
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[name], expected[name]) for name in expected)


def test_from_an_older_checkpoint_bit_for_bit(undisturbed, tmp_path):
    """What `submit --resume 2` leaves: newer ones are set aside."""
    run = copied(undisturbed, tmp_path / "run")
    for step in (4, 6):
        set_aside(run.run, step, "resume from step 2")
    session = trained(run, 2)
    assert session.resumed.step == 2
    assert steps_present(run.run.checkpoints) == [2, 4, 6]
    assert [told[0] for told in run.steps(2)] == [3, 4, 5, 6]
    assert run.steps(2) == undisturbed.steps()[2:]
    assert run.events("aside", 2) == []


def test_a_damaged_one_is_set_aside_and_told(undisturbed, tmp_path):
    run = copied(undisturbed, tmp_path / "run")
    victim = run.run.checkpoint(6) / "rank-00000.h5"
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    trained(run, 2)
    (load,), (aside,) = run.events("load", 2), run.events("aside", 2)
    assert (load["step"], [step for step, _ in load["passed_over"]], aside["step"]) == (4, [6], 6)
    assert "rank-00000.h5" in aside["why"]
    assert [one.step for one in asides(run.run)] == [6]
    assert run.steps(2) == undisturbed.steps()[4:]


@pytest.fixture
def source(undisturbed, tmp_path):
    return copied(undisturbed, tmp_path / "source")


def test_a_branch_goes_on_as_its_origin_did(data, undisturbed, source, tmp_path):
    origin = Origin(source.run.path, 4)
    run = run_of(tmp_path / "branch", job_of(data), origin)
    now = 1.7e9
    assert hold(origin, run.run) is None
    assert leased(source.run, now) == {4}
    session = trained(run)
    assert (session.resumed.step, session.progress.step) == (4, 6)
    assert run.steps() == undisturbed.steps()[4:]
    (load,) = run.events("load")
    assert load["origin"] == f"{source.run.path} at step 4"
    assert run.events("start")[0]["resumed_from"] == 4
    assert steps_present(run.run.checkpoints) == [6]
    assert leased(source.run, now) == set(), "it has a checkpoint of its own"
    make_run(run.run.path, job_of(data, training=STEPS | {"steps": 7}))
    session = trained(run, 2)
    assert session.resumed.origin is None
    assert "origin" not in run.events("load", 2)[0]


def test_what_a_branch_says_otherwise_takes_effect_and_is_told(data, source, tmp_path):
    run = run_of(tmp_path / "branch", job_of(data, optimizer={"lr": 5e-3}), Origin(source.run.path, 4))
    trained(run)
    (change,) = run.events("change")
    assert change["step"] == 4
    assert change["keys"]["optimizer.lr"] == [1e-2, 5e-3]
    assert not any(key.startswith(("slurm", "run", "environment")) for key in change["keys"])
    assert run.steps()[0][1] == source.steps()[4][1], "the loss of the first step is that of the same weights"
    assert run.steps()[1][1] != source.steps()[5][1]


def test_a_branch_never_touches_its_origin(data, source, tmp_path):
    victim = source.run.checkpoint(4) / "rank-00000.h5"
    victim.write_bytes(victim.read_bytes()[:-1])
    run = run_of(tmp_path / "branch", job_of(data), Origin(source.run.path, 4))
    with pytest.raises(CheckpointError, match="the checkpoint of step 4 does not verify"):
        solo_loop(run)
    assert steps_present(source.run.checkpoints) == [2, 4, 6]


@pytest.mark.parametrize(
    ("step", "more", "error"),
    [
        (3, {}, CheckpointError(r"origin\.json: this run begins with .* at step 3, and that checkpoint is no longer there")),
        (4, {"training": {**STEPS, "seed": 5}}, ConfigError(r"training\.seed = 5: the checkpoint of step 4 was trained with 1234")),
        (4, {"model": DROPPING | {"vocab": 300}}, CheckpointError(r"model/.*: shape .* in this model")),
    ],
    ids=["gone", "seed", "vocab"],
)
def test_a_branch_that_cannot_be(data, source, tmp_path, *, step, more, error):
    run = run_of(tmp_path / "branch", job_of(data, **more), Origin(source.run.path, step))
    with pytest.raises(type(error), match=str(error)):
        solo_loop(run)


def broken_average(session, step):
    """The moving average, which nothing computes with, is infinite from this step on."""
    inner = session.built.runner.train

    def train(batch, scale):
        if session.progress.step + 1 == step:
            session.average.values[0].view(-1)[0] = torch.inf
        return inner(batch, scale)

    session.built.runner.train = train


def test_a_save_that_fails_leaves_the_run_alone_but_the_last_one_must_not(data, tmp_path):
    run = run_of(tmp_path / "run", job_of(data, training=STEPS | {"ema_decay": 0.5}))
    session, loop = solo_loop(run)
    broken_average(session, 3)
    with pytest.raises(CheckpointError, match=r"checkpoint of step 6 not saved: .*ema/"):
        loop.run()
    assert [event["step"] for event in run.events("step")] == [1, 2, 3, 4, 5, 6]
    assert [event["step"] for event in run.events("save")] == [2]
    assert [(event["step"], event["durable"]) for event in run.events("save_failed")] == [(4, 2), (6, 2), (6, 2)]
    assert run.events("finish") == []
    assert steps_present(run.run.checkpoints) == [2]


def test_a_loss_that_is_not_finite_waits_for_the_save_under_way_and_names_it(data, tmp_path):
    run = run_of(tmp_path / "run", job_of(data))
    session, _ = solo_loop(run)
    session = replace(session, saver=FakeSaver(SoloGroup(), behind=True))
    inner = session.built.runner.train

    def train(batch, scale):
        if session.progress.step == 4:
            session.built.parameters[1].tensor[0] = torch.nan
        return inner(batch, scale)

    session.built.runner.train = train
    with pytest.raises(NonFiniteError, match=r"step 5: loss nan.*last durable checkpoint: step 4$"):
        Loop(session, Standing(0, "n1"), None, SystemClock()).run()


def test_a_state_that_is_not_finite_is_saved_where_that_is_asked(data, tmp_path):
    job = job_of(data, training=STEPS | {"ema_decay": 0.5}, checkpoint={"allow_nonfinite": True, "keep": 1, "keep_every_steps": 4})
    run = run_of(tmp_path / "run", job)
    session, loop = solo_loop(run)
    broken_average(session, 3)
    loop.run()
    assert steps_present(run.run.checkpoints) == [4, 6]


def test_the_best_by_a_metric_stay(data, tmp_path):
    held = {"sets": {"held": data}, "every_steps": 1, "batches": 1}
    job = job_of(data, checkpoint={"every_steps": 1, "keep": 1, "keep_best": 2, "best_metric": "held"}, evaluation=held)
    run = run_of(tmp_path / "run", job)
    trained(run)
    losses = {event["step"]: event["eval_loss"] for event in run.events("eval")}
    best = sorted(losses, key=losses.get)[:2]
    assert steps_present(run.run.checkpoints) == sorted({6, *best})


def weights_of(source, step=4):
    return f"run:{source.run.path}@{step}"


def values(session):
    return {part.name: p.tensor[tuple(slice(a, b) for a, b in part.region)] for p in session.built.parameters for part in p.parts}


def test_weights_of_another_run_and_nothing_else(data, source, tmp_path):
    run = run_of(tmp_path / "run", job_of(data, model=DROPPING | {"weights": weights_of(source)}))
    session, loop = solo_loop(run)
    assert (session.progress.step, session.optimizer.updates, session.batches.position) == (0, 0, 0)
    expected = tensors_of(source.run, 4)
    assert all(torch.equal(tensor, expected[f"model/{name}"]) for name, tensor in values(session).items())
    assert all(not kept.any() for kind in session.optimizer.states().values() for kept in kind)
    loop.run()
    (note,) = run.events("note")
    assert note["text"] == f"weights of {source.run.path} at step 4: {len(values(session))} tensors"
    assert run.events("start")[0]["resumed_from"] is None


def test_weights_of_another_shape(data, source, tmp_path):
    """A layer more, and a norm that is thought to be another: what is missing or too many is told by name, and allowed by name."""
    model = DROPPING | {"layers": MODEL["layers"] + 1, "weights": weights_of(source)}
    run = run_of(tmp_path / "run", job_of(data, model=model))
    with pytest.raises(CheckpointError, match=r"step-00000004: no tensor layers\.4\..*weights_missing may allow it"):
        solo_loop(run)
    fresh, _ = solo_loop(run_of(tmp_path / "fresh", job_of(data, model=DROPPING | {"layers": MODEL["layers"] + 1})))
    allowed = {"weights_missing": ["layers.4.*", "norm.weight"], "weights_names": {"norm.*": "old.*"}, "weights_surplus": ["norm.*"]}
    session, _ = solo_loop(run_of(tmp_path / "allowed", job_of(data, model=model | allowed)))
    expected, first = tensors_of(source.run, 4), values(fresh)
    for name, tensor in values(session).items():
        kept = name.startswith("layers.4.") or name == "norm.weight"
        assert torch.equal(tensor, first[name] if kept else expected[f"model/{name}"]), name
    assert "first values are kept of layers.4." in session.notes[-1]
    assert session.notes[-1].endswith("norm.weight is left aside")
