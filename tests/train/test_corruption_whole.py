"""Supervisor and real ranks under mpiexec: attempt after attempt until a node is found that flips bits; and numbers that stay wrong."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from slurmtrain.resilience.records import read_attempts
from slurmtrain.telemetry.exitfile import read_exit_records
from tests.mpi_world import clean_environment
from tests.train.faulty import doomed, flip, nan
from tests.train.runs import make_data, make_run
from tests.train.several import job_of, tensors_of

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.long]

LAST = 9
START = """
import os, sys
from pathlib import Path
from slurmtrain.resilience.supervisor import supervise
from slurmtrain.rundir import RunDir
sys.exit(supervise(RunDir(Path(sys.argv[1])), os.environ, foreground=True).code)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def made(folder, data, nodes, **recovery):
    sections = {"recovery": {"backoff_s": 0.1, **recovery}, "slurm": {"nodes": nodes}}
    return make_run(folder, job_of(data, sections=sections, nodes=nodes, gpus=1, training={"steps": LAST, "micro_batch": 2}, every=4))


def supervised(run):
    argv = [sys.executable, "-c", START, str(run.run.path)]
    done = subprocess.run(argv, env=clean_environment(), capture_output=True, text=True, timeout=560, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    run = made(tmp_path_factory.mktemp("plain") / "run", data, 4)
    code, out = supervised(run)
    assert code == 0, out
    return run


def test_a_node_that_flips_bits_is_found_in_three_runs_and_avoided(data, tmp_path, undisturbed):
    run = made(tmp_path / "run", data, 4, corruption={"every_steps": 3})
    doomed(run.run, flip(5, 2), flip(5, 2, attempt=2), flip(5, 0, attempt=3))
    code, out = supervised(run)
    assert code == 0, out
    records = read_attempts(run.run)
    usual = ("local-1", "local-2", "local-3", "local-4")
    assert [record.nodes for record in records] == [usual, usual, ("local-3", "local-2", "local-1", "local-4"), usual]
    assert [record.outcome.category for record in records] == ["silent_corruption"] * 3 + ["finished"]
    assert [record.outcome.node for record in records] == ["", "", "local-3", ""]
    assert {one.category for one in read_exit_records(run.run.attempt(1).exit_dir).values()} == {"silent_corruption"}
    assert list(json.loads(run.run.exclude_json.read_bytes())["nodes"]) == ["local-3"]
    one, two = tensors_of(run.run, LAST), tensors_of(undisturbed.run, LAST)
    assert [name for name in one if not torch.equal(one[name], two[name])] == []


def test_numbers_that_stay_wrong_end_the_run_by_their_cause(data, tmp_path):
    run = made(tmp_path / "run", data, 2, numerics={"rollbacks": 1}, budgets={"numerical": 0})
    doomed(run.run, nan(6, rank=1), nan(6, rank=1))
    code, out = supervised(run)
    assert code == 93, out
    (record,) = read_attempts(run.run)
    assert (record.outcome.kind, record.outcome.category, record.outcome.last_durable_step) == ("failed", "numerical", 4)
    assert "went back 1 of 1 times already; nothing was updated; last durable checkpoint: step 4" in record.outcome.cause
    assert {one.category for one in read_exit_records(run.run.attempt(1).exit_dir).values()} == {"numerical"}
    assert not run.run.exclude_json.exists(), "the code's affair"
