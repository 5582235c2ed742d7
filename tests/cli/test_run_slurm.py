"""`slurmtrain run` inside salloc on a real cluster, with real ranks, in an environment that would mislead srun."""

from __future__ import annotations

import json
import sys

import pytest

from slurmtrain.data.build import build
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.history import read_acts

pytestmark = [pytest.mark.slurm, pytest.mark.mpi, pytest.mark.slow]

JOB = """\
[model]
layers = 1
hidden = 16
heads = 2
kv_heads = 2
ffn = 32
vocab = 320

[data]
path = "tokens"

[training]
steps = 3
sequence_length = 16
global_batch = 2
"""
POISON = [
    "SLURM_NTASKS=7",
    "SLURM_CPU_BIND=mask_cpu:0x0",
    "SLURM_DISTRIBUTION=cyclic",
    "SRUN_DEBUG=3",
    "SBATCH_PARTITION=nowhere",
    "SLURM_MPI_TYPE=none",
]


def test_part_of_a_node_of_an_allocation(cluster, tmp_path):
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 50)
    build([tmp_path / "text.txt"], tmp_path / "tokens")
    (tmp_path / "tiny.toml").write_text(JOB)
    slurmtrain = [sys.executable, "-m", "slurmtrain.cli.main", "run", tmp_path / "tiny.toml", "--root", tmp_path, "--gpus-per-node", "2"]
    done = cluster.run(["salloc", "-N1", "--exclusive", "-J", "mine", "env", *POISON, *slurmtrain], cwd=tmp_path, timeout_s=200)
    run = RunDir(tmp_path / "tiny")
    assert "step 3/3" in done.stdout
    assert json.loads(run.finished.read_bytes())["step"] == 3
    attempt = json.loads(run.attempt(1).attempt_json.read_bytes())
    assert (attempt["world"], len(attempt["nodes"])) == (2, 1)
    assert [act.what for act in read_acts(run)][:2] == ["run", "start"]
