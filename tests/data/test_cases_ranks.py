"""Data parallelism of three and of two nodes: all ranks make as many passes, all nodes read the same tokens (docs/cases.md)."""

from __future__ import annotations

import filecmp
from pathlib import Path

import numpy as np
import pytest

from slurmtrain.atomic import SystemDisk
from slurmtrain.config.data import DataConfig
from slurmtrain.config.job import JobConfig, RunConfig
from slurmtrain.config.model import ModelConfig
from slurmtrain.config.site import SitePaths
from slurmtrain.config.stored import write_models
from slurmtrain.config.training import EvaluationConfig, TrainingConfig
from slurmtrain.data.stream import evaluation_batches, open_batches
from slurmtrain.fabric.plan import build_plan
from slurmtrain.rundir import RunDir
from tests.data.token_files import write_folder
from tests.train.runs import Run, make_job, make_site

TINY = ModelConfig(layers=1, hidden=32, heads=2, kv_heads=2, ffn=32, vocab=257)


@pytest.fixture(scope="module")
def ten(tmp_path_factory):
    """Ten samples of 8 tokens: three ranks with micro-batches of two cannot share them evenly."""
    return write_folder(tmp_path_factory.mktemp("ten") / "tokens", [[i % 251 for i in range(81)]])


def job_of(path, batch):
    return JobConfig(
        run=RunConfig(name="ten"),
        model=TINY,
        data=DataConfig(path=path, prefetch=0),
        training=TrainingConfig(steps=1, sequence_length=8, global_batch=batch, micro_batch=2),
        evaluation=EvaluationConfig(batches=16),
    )


@pytest.mark.parametrize(("batch", "passes"), [(6, [1, 1]), (12, [2])])
def test_three_ranks_evaluate_ten_samples_in_as_many_passes(ten, batch, passes):
    ranks = [list(evaluation_batches(ten, job_of(ten, batch), data_rank=rank, data_size=3)) for rank in range(3)]
    assert [[len(made.inputs) for made in rank] for rank in ranks] == [passes] * 3
    labels = [label for rank in ranks for made in rank for label in made.labels.flatten().tolist() if label != -100]
    assert sorted(labels) == sorted(i % 251 for i in range(1, 81))


def test_three_ranks_train_on_ten_samples_in_as_many_passes(ten):
    """Five steps of six are three epochs: each sample has been seen three times, and no rank was ever short of one."""
    ranks = [open_batches(job_of(ten, 6), data_rank=rank, data_size=3, seed=1) for rank in range(3)]
    made = [[next(rank).inputs for rank in ranks] for _ in range(5)]
    assert {inputs.shape for step in made for inputs in step} == {(1, 2, 8)}
    seen = [tuple(row) for step in made for inputs in step for row in inputs.reshape(-1, 8).tolist()]
    assert {seen.count(row) for row in seen} == {3}
    assert len(set(seen)) == 10


def run_of(folder: Path, data: Path, *, stage: str, scratch: Path) -> Run:
    """Two nodes of two ranks; the node-local disk of each is a folder of its own name."""
    job = make_job(data, nodes=2, gpus=2, training={"steps": 2, "micro_batch": 2}, model={"layers": 2}, tp=2)
    job = job.model_copy(update={"data": DataConfig(path=data, stage=stage)})
    site = make_site().model_copy(update={"paths": SitePaths(scratch=scratch / "$SLURMTRAIN_NODE")})
    plan, run = build_plan(job, site), RunDir(folder)
    run.create()
    write_models(run, job, site, plan, SystemDisk())
    return Run(run, plan.nodes, plan.gpus_per_node)


@pytest.mark.mpi
@pytest.mark.slow
def test_every_node_has_its_copy_and_trains_as_without(tmp_path):
    """One rank a node copies, none reads what another node's disk has."""
    random = np.random.default_rng(2)
    data = write_folder(tmp_path / "shared", [[*random.integers(0, 256, 400).tolist(), 256] for _ in range(3)])
    there, staged = (run_of(tmp_path / f"run-{stage}", data, stage=stage, scratch=tmp_path / "disk") for stage in ("none", "local"))
    for run in (there, staged):
        run.attempt(1)
    assert len(staged.steps()) == 2
    assert staged.steps() == there.steps()
    assert staged.events("note") == []
    copies = sorted((tmp_path / "disk").glob("*/*/*"))
    assert [copy.relative_to(tmp_path / "disk").parts[0] for copy in copies] == ["n1", "n2"]
    for copy in copies:
        assert filecmp.cmpfiles(copy, data, ["tokens.bin", "documents.bin"], shallow=False)[1:] == ([], [])
