"""Numbers that go wrong on one rank's way through a run: left out, gone back from, the end; and what a later start knows of it."""

from __future__ import annotations

import json

import pytest
import torch

from slurmtrain.errors import NonFiniteError
from slurmtrain.store.aside import asides
from slurmtrain.store.listing import steps_present
from slurmtrain.telemetry.faults import Fault
from slurmtrain.telemetry.history import read_acts
from slurmtrain.telemetry.interventions import read_book
from slurmtrain.train.feed import step_batch
from slurmtrain.train.loop import Ending
from slurmtrain.train.stopping import StopFlag
from tests.train.faulty import doomed, nan
from tests.train.runs import make_data, make_run
from tests.train.several import job_of, tensors_of
from tests.train.solo import solo_loop, solo_world

LAST, EVERY, BATCH = 12, 3, 8


@pytest.fixture(scope="module", autouse=True)
def world(tmp_path_factory):
    with solo_world(tmp_path_factory.mktemp("group")):
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def make(data, tmp_path):
    def made(name="run", dropout=0.1, checkpoint=None, reading=None, **numerics):
        sections = {"recovery": {"numerics": numerics}, "checkpoint": checkpoint or {}, "data": reading or {}}
        training = {"steps": LAST, "micro_batch": 4, "ema_decay": 0.9}
        return make_run(tmp_path / name, job_of(data, sections=sections, training=training, model={"dropout": dropout}, every=EVERY))

    return made


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    training = {"steps": LAST, "micro_batch": 4, "ema_decay": 0.9}
    run = make_run(tmp_path_factory.mktemp("runs") / "run", job_of(data, training=training, model={"dropout": 0.1}, every=EVERY))
    solo_loop(run)[1].run()
    return run


def trained(run, attempt=1):
    assert solo_loop(run, attempt)[1].run() == Ending("finished", LAST)


def next_loss(run, attempt, position, step):
    """Of a session that goes on from the run's newest checkpoint, but with the samples from `position` on, as step `step` + 1."""
    session, _ = solo_loop(run, attempt)
    session.batches.seek(position, step)
    return session.step(step + 1, step_batch(next(session.batches), session.world.device)).loss


def same_end(run, other):
    one, two = tensors_of(run.run, LAST), tensors_of(other.run, LAST)
    assert one.keys() == two.keys()
    assert [name for name in one if not torch.equal(one[name], two[name])] == []


def seen(run, attempt=None):
    return [e["step"] for e in run.events("step", attempt)]


def test_a_bad_step_is_left_out(make):
    run, peer = make(dropout=0.0, skip_steps=1), make("peer", dropout=0.0)
    doomed(run.run, nan(4))
    trained(run)
    assert seen(run) == list(range(1, LAST + 1))
    (skip,) = run.events("skip")
    assert (skip["step"], skip["cause"], skip["in_row"], skip["skipped"]) == (4, "nonfinite", 1, 1)
    assert skip["grad_norm"] == "nan"
    assert read_book(run.run.numerics_json).skipped == 1
    rates = [e["lr"] for e in run.events("step")]
    assert rates[3] == rates[4], "the schedule waits for an update"
    solo_until(peer, 3)
    assert run.steps()[4][1] == next_loss(peer, 2, 4 * BATCH, 4), "the weights of step 3 meet the samples of step 5"


def solo_until(run, step):
    flag = StopFlag()
    session, loop = solo_loop(run, 1, flag)
    inner = session.built.runner.train

    def train(batch, scale):
        if session.progress.step + 1 == step:
            flag.given.add("requeue")
        return inner(batch, scale)

    session.built.runner.train = train
    assert loop.run() == Ending("stopped", step, "requeue")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_back_with_nothing_changed_repeats_every_bit(make, undisturbed, mode):
    run = make(checkpoint={"mode": mode}, rollbacks=1)
    doomed(run.run, nan(8))
    trained(run)
    assert seen(run) == [*range(1, 8), *range(7, LAST + 1)]
    assert run.steps()[:7] == undisturbed.steps()[:7]
    assert run.steps()[7:] == undisturbed.steps()[6:]
    (event,) = run.events("rollback")
    assert (event["step"], event["began"], event["to"], event["cause"], event["changed"]) == (8, 8, 6, "nonfinite", {})
    assert (event["number"], event["rollbacks"]) == (1, 1)
    assert steps_present(run.run.checkpoints) == steps_present(undisturbed.run.checkpoints) == [3, 6, 9, 12]
    assert asides(run.run) == []
    same_end(run, undisturbed)
    assert [act.what for act in read_acts(run.run)] == ["rollback"]


def test_a_checkpoint_made_while_steps_were_bad_is_not_good(make, undisturbed):
    run = make(skip_steps=2, rollbacks=1)
    doomed(run.run, nan(5), nan(6), nan(7))
    trained(run)
    assert seen(run) == [*range(1, 7), *range(4, LAST + 1)]
    assert [e["step"] for e in run.events("skip")] == [5, 6]
    (event,) = run.events("rollback")
    assert (event["step"], event["began"], event["to"]) == (7, 5, 3)
    assert [(one.step, "the run went back" in one.why) for one in asides(run.run)] == [(6, True)]
    assert run.steps()[6:] == undisturbed.steps()[3:]
    same_end(run, undisturbed)


def test_as_old_as_is_asked(make, undisturbed):
    run = make(rollbacks=1, older_by=3)
    doomed(run.run, nan(8))
    trained(run)
    (event,) = run.events("rollback")
    assert (event["step"], event["to"]) == (8, 3)
    assert [one.step for one in asides(run.run)] == [6]
    assert run.steps()[7:] == undisturbed.steps()[3:]
    same_end(run, undisturbed)


def test_none_is_old_enough(make):
    run = make(rollbacks=1, older_by=8)
    doomed(run.run, nan(8))
    with pytest.raises(NonFiniteError, match=r"no checkpoint up to step -1 is there .*last durable checkpoint: step 6$"):
        trained(run)
    assert asides(run.run) == []
    assert steps_present(run.run.checkpoints) == [3, 6]


def test_the_budget_is_the_runs(make):
    run = make(rollbacks=2)
    doomed(run.run, nan(8), nan(8), nan(8), nan(8, attempt=2))
    with pytest.raises(NonFiniteError, match=r"step 8: .*went back 2 of 2 times already; nothing was updated.*: step 6$"):
        trained(run)
    assert [(e["to"], e["number"]) for e in run.events("rollback")] == [(6, 1), (6, 2)]
    with pytest.raises(NonFiniteError, match=r"went back 2 of 2"):
        trained(run, 2)
    assert len(read_book(run.run.numerics_json).rollbacks) == 2


def test_a_lower_rate_for_some_steps_and_a_start_in_the_middle_of_them(make, undisturbed):
    run, stopped = (make(name, rollbacks=1, lr_factor=0.5, for_steps=4) for name in ("whole", "stopped"))
    for one in (run, stopped):
        doomed(one.run, nan(8))
    trained(run)
    whole = {e["step"]: e["lr"] for e in undisturbed.events("step")}
    lowered = [(e["step"], e["lr"] / whole[e["step"]]) for e in run.events("step")[7:]]
    assert lowered == [(7, 0.5), (8, 0.5), (9, 0.5), (10, 0.5), (11, 1.0), (12, 1.0)]
    (event,) = run.events("rollback")
    assert event["changed"] == {"lr_factor": 0.5, "until": 10}
    stop_after_the_rollback(stopped, at=8)
    trained(stopped, 2)
    assert stopped.steps() == run.steps()
    same_end(run, stopped)


def stop_after_the_rollback(run, at):
    flag = StopFlag()
    session, loop = solo_loop(run, 1, flag)
    inner = session.built.runner.train

    def train(batch, scale):
        if session.progress.step + 1 == at and session.numerics.book.rollbacks:
            flag.given.add("requeue")
        return inner(batch, scale)

    session.built.runner.train = train
    assert loop.run() == Ending("stopped", at, "requeue")


def test_the_data_that_did_it_are_left_out_also_by_a_start_before_the_next_save(make):
    run = make(rollbacks=1, skip_data=True)
    doomed(run.run, nan(8), Fault("exception", 0, 9))
    with pytest.raises(RuntimeError, match="on purpose"):
        solo_loop(run)[1].run()
    (event,) = run.events("rollback")
    assert event["changed"] == {"left_out": [6 * BATCH, 8 * BATCH]}
    assert seen(run) == [*range(1, 8), 7, 8]
    again = run.steps(1)[7:]
    assert again[0] != run.steps(1)[6], "other samples"
    trained(run, 2)
    assert run.steps(2)[:2] == again
    manifest = json.loads((run.run.checkpoint(LAST) / "manifest.json").read_bytes())
    assert manifest["state"]["position"] == (LAST + 2) * BATCH
    assert manifest["state"]["numerics"]["rollbacks"] == 1


def test_which_samples_are_read(make):
    run = make(reading={"prefetch": 0}, rollbacks=1, skip_data=True)
    doomed(run.run, nan(8))
    session, loop = solo_loop(run)
    read, inner = [], session.batches.sample
    session.batches.sample = lambda position: read.append(position) or inner(position)
    loop.run()
    assert read == list(range(8 * BATCH + 6 * BATCH)), "steps 1 to 8, then 7 to 12: each sample once"


def spiking(session, steps, factor=50.0):
    """The loss that is told, not what is trained, is far off in these steps, once each."""
    inner, left = session.built.runner.train, list(steps)

    def train(batch, scale):
        loss = inner(batch, scale)
        if session.progress.step + 1 in left:
            left.remove(session.progress.step + 1)
            return loss * factor
        return loss

    session.built.runner.train = train


def test_a_spike_is_a_fault_too(make, undisturbed):
    run = make(skip_steps=1, rollbacks=1, spike_zscore=8.0, spike_window=4)
    session, loop = solo_loop(run)
    spiking(session, [8, 9])
    loop.run()
    (skip,) = run.events("skip")
    (event,) = run.events("rollback")
    assert (skip["step"], skip["cause"]) == (8, "spike")
    assert "standard deviations above the mean of 4 steps" in skip["why"]
    assert (event["step"], event["began"], event["to"], event["cause"]) == (9, 8, 6, "spike")
    assert run.steps()[-6:] == undisturbed.steps()[6:]
    same_end(run, undisturbed)


def test_a_spike_is_known_by_what_an_earlier_attempt_saw(make):
    run = make(skip_steps=1, spike_zscore=8.0, spike_window=4)
    solo_until(run, 6)
    session, loop = solo_loop(run, 2)
    spiking(session, [7])
    loop.run()
    assert [e["step"] for e in run.events("skip")] == [7]
    before = [loss for step, loss, _ in run.steps(1)][-4:]
    manifest = json.loads((run.run.checkpoint(6) / "manifest.json").read_bytes())
    assert manifest["state"]["numerics"]["losses"] == before


def test_an_overflow_of_fp16_is_no_fault(data, tmp_path):
    training = {"steps": 8, "micro_batch": 4, "dtype": "fp16", "loss_scale": {"initial": 2.0**26}}
    sections = {"recovery": {"numerics": {"skip_steps": 1, "rollbacks": 1}}}
    run = make_run(tmp_path / "run", job_of(data, sections=sections, training=training))
    solo_loop(run)[1].run()
    assert len(run.events("skip")) >= 2
    assert {e["cause"] for e in run.events("skip")} == {"overflow"}
    assert not run.run.numerics_json.exists()


def test_fp16_at_its_smallest_scale_is_one(data, tmp_path):
    training = {"steps": 5, "micro_batch": 4, "dtype": "fp16", "loss_scale": {"initial": 4.0, "minimum": 2.0}}
    run = make_run(tmp_path / "run", job_of(data, sections={"recovery": {"numerics": {"skip_steps": 2}}}, training=training))
    doomed(run.run, nan(2), nan(3))
    solo_loop(run)[1].run()
    assert [(e["step"], e["cause"]) for e in run.events("skip")] == [(2, "overflow"), (3, "nonfinite")]
    assert read_book(run.run.numerics_json).skipped == 1
