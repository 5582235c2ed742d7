"""A rank that is killed from outside, in the middle of a run with shards, a pipeline and batches made ahead: nothing stays behind."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from slurmtrain.store.listing import newest_durable_step
from tests.steps.conformance import until
from tests.train.runs import make_data, make_run
from tests.train.several import job_of

pytestmark = [pytest.mark.mpi, pytest.mark.long]

LAYOUT = {"gpus": 4, "pp": 2, "dp_mode": "fsdp", "every": 3}
TRAINING = {"micro_batch": 1}
OPTIMIZER = {"lr": 1e-3, "min_lr": 1e-3, "warmup_steps": 0}


def ranks_of(run):
    """Living processes that were started for this run."""
    return [p for p in psutil.process_iter(["cmdline", "status"]) if str(run.run.path) in (p.info["cmdline"] or [])]


def job(data, steps):
    sections = {"data": {"prefetch": 3}}
    return job_of(data, sections=sections, training=TRAINING | {"steps": steps}, optimizer=OPTIMIZER, **LAYOUT)


def test_nothing_stays_behind_and_the_run_goes_on(tmp_path):
    data = make_data(tmp_path)
    run = make_run(tmp_path / "run", job(data, 100_000))
    with ThreadPoolExecutor(1) as pool:
        attempt = pool.submit(run.attempt, 1, check=False)
        until(lambda: len(run.steps()) >= 5 or attempt.done(), limit_s=120)
        assert not attempt.done(), attempt.result().out
        ranks = ranks_of(run)
        assert len([p for p in ranks if "slurmtrain.train" in p.info["cmdline"]]) >= 4
        os.kill(max(p.pid for p in ranks), signal.SIGKILL)
        assert attempt.result().rc != 0
    _, alive = psutil.wait_procs(ranks_of(run), timeout=20)
    assert alive == []
    before = run.steps()
    durable = newest_durable_step(run.run.checkpoints)
    last = durable + 4
    make_run(run.run.path, job(data, last))
    run.attempt(2)
    (load,) = run.events("load", 2)
    assert load["step"] == durable
    after = run.steps(2)
    assert [step for step, *_ in after] == list(range(durable + 1, last + 1))
    twice = {step: told for step, *told in before}
    assert all(twice.get(step, told) == told for step, *told in after), "steps that were trained twice, the same bits"
    assert {e.kind for e in run.exits(2).values()} == {"finished"}
    assert ranks_of(run) == []
