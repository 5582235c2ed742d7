"""`python -m slurmtrain.train RUN` under mpiexec: eight ranks as one process, stops agreed by all, faults that end the world."""

from __future__ import annotations

import time

import pytest
import torch
from torch.nn import functional

from slurmtrain.data.stream import open_batches
from slurmtrain.models.decoder import Decoder
from slurmtrain.models.initial import initialise
from slurmtrain.runtime.seeds import seed_for
from slurmtrain.store.listing import steps_present
from slurmtrain.telemetry.reader import read_events
from tests.train.runs import make_data, make_job, make_run

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def one_process(job):
    """[(step, loss, norm)] of plain code: the single-device model, torch's AdamW and clipping, a hand-written schedule."""
    training, config = job.training, job.optimizer
    model = Decoder(job.model)
    initialise(model, job.model, seed_for(training.seed, purpose="model"))
    batches = open_batches(job, data_rank=0, data_size=1, seed=seed_for(training.seed, purpose="data"))
    matrices, norms = ([p for p in model.parameters() if (p.ndim > 1) == is_matrix] for is_matrix in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.95), eps=1e-8)
    results = []
    for step in range(1, training.steps + 1):
        batch = next(batches)
        inputs, labels = (torch.from_numpy(part).flatten(0, 1) for part in (batch.inputs, batch.labels))
        loss = functional.cross_entropy(model(inputs).flatten(0, 1), labels.flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = config.lr * min(1.0, step / 4)  # the job warms up for 4 steps and has min_lr = lr
        optimizer.step()
        optimizer.zero_grad()
        results.append((step, loss.item(), norm.item()))
    batches.close()
    return results


@pytest.mark.slow
def test_eight_ranks_train_as_one_process(data, tmp_path):
    """tp 2 x pp 2 x dp 2 on two emulated nodes, 20 steps, clipping at 0.1: loss and norm of every step to 1e-5."""
    training = {"micro_batch": 2, "clip_norm": 0.1}
    optimizer = {"lr": 1e-3, "min_lr": 1e-3, "warmup_steps": 4}
    job = make_job(data, nodes=2, gpus=4, training=training, optimizer=optimizer, tp=2, pp=2)
    run = make_run(tmp_path / "run", job)
    run.attempt(1)
    expected = one_process(job)
    assert min(norm for _, _, norm in expected) > 0.1
    got = run.steps()
    assert [step for step, _, _ in got] == list(range(1, 21))
    assert [loss for _, loss, _ in got] == pytest.approx([loss for _, loss, _ in expected], rel=1e-5)
    assert [norm for _, _, norm in got] == pytest.approx([norm for _, _, norm in expected], rel=1e-5)
    assert {(rank, e.kind, e.code, e.step) for rank, e in run.exits(1).items()} == {(rank, "finished", 0, 20) for rank in range(8)}
    assert run.events("start", rank=4)[0]["layout"] == {"tp": 2, "pp": 2, "cp": 1, "ep": 1, "dp": 2, "dp_mode": "ddp"}
    assert run.events("step", rank=4) == []  # local rank 0 of the second node writes its node's file, but no steps


@pytest.mark.slow
def test_a_signal_on_one_rank_stops_all_at_one_step_and_resume_repeats_the_run(data, tmp_path):
    """The stopped one saves beside its training: the save of step 5 is under way when it hears, and is waited for."""
    job = make_job(data, gpus=2, training={"steps": 8, "micro_batch": 2}, every=5, tp=2)
    beside = job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update={"mode": "async"})})
    straight, stopped = make_run(tmp_path / "straight", job), make_run(tmp_path / "stopped", beside)
    straight.attempt(1)
    began = time.time()
    stopped.attempt(1, disturb="signal@6")
    assert {(rank, e.kind, e.step, e.error) for rank, e in stopped.exits(1).items()} == {(r, "stopped", 6, "requeue") for r in (0, 1)}
    assert steps_present(stopped.run.checkpoints) == [5, 6]
    stopped.attempt(2)
    assert stopped.steps(1) + stopped.steps(2) == straight.steps()  # bit for bit, nothing twice, nothing left out
    assert {e.kind for e in stopped.exits(2).values()} == {"finished"}
    first, second = (one["startup"] for one in stopped.events("start"))
    assert set(first) == set(second) == {"python_s", "mpi_s", "group_s", "build_s", "load_s"}
    up = next(event.t for event in read_events(stopped.run.events) if event.kind == "start")
    assert began - 0.1 < up - sum(first.values()) < began + 30, "the stages add up to the age of the process"
    assert first["load_s"] == 0.0
    assert second["load_s"] == pytest.approx(stopped.events("load", attempt=2)[0]["seconds"], abs=1e-3)
    assert min(first["python_s"], first["mpi_s"], first["build_s"]) > 0


@pytest.mark.parametrize(
    ("disturb", "layout", "words"),
    [
        ("loader@3", {"tp": 2}, "ValueError: token file went away at step 3"),
        ("forward@3", {"tp": 2}, "ValueError: layer broke at step 3"),
        ("forward@2", {"pp": 2}, "ValueError: layer broke at step 2"),
        ("save@2", {"dp": 2}, "ValueError: writer died at step 2"),
    ],
)
def test_an_exception_on_one_rank_ends_the_world_with_its_words(data, tmp_path, disturb, layout, words):
    job = make_job(data, gpus=2, training={"steps": 100_000, "micro_batch": 2}, every=2, **layout)
    run = make_run(tmp_path / "run", job)
    done = run.attempt(1, disturb=disturb, check=False)
    ended = time.time()
    assert done.rc != 0
    exits = run.exits(1)
    assert (exits[1].kind, exits[1].code) == ("error", 1)
    assert exits[1].error == words
    assert exits[1].step == int(disturb[-1]) - (not disturb.startswith("save"))
    if 0 in exits:  # mpiexec may have killed it before it could speak
        assert exits[0].error.startswith("peer lost: ")
    assert ended - run.run.attempt(1).exit_file(1).stat().st_mtime < 30
