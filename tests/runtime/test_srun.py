"""The same start under a real srun: one world over two nodes, in the attempt's order; N worlds of one refused."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from slurmtrain.fabric.layout import layout
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.exitfile import ExitRecord, read_exit_records
from tests.mpi_world import ROOT, cpu_site, write_run

pytestmark = [pytest.mark.slurm, pytest.mark.mpi]
RANK = [sys.executable, Path(__file__).with_name("rank_start.py")]
SITE = cpu_site(2, launcher="srun", slurm={"mpi": "pmi2"})


def environment() -> dict[str, str]:
    return {"SLURMTRAIN_ATTEMPT": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def test_a_world_over_two_nodes_takes_the_attempts_order(cluster, tmp_path):
    run = RunDir(tmp_path)
    write_run(run, layout(nodes=2, gpus_per_node=2, tp=2, dp=2), SITE, ["n2", "n1"])
    srun = ["srun", "--mpi=pmi2", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--nodelist=n1,n2", "--kill-on-bad-exit=1"]
    cluster.run([*srun, *RANK, run.path], env=environment(), timeout_s=120)
    places = [("n2", 0), ("n2", 1), ("n1", 0), ("n1", 1)]
    expected = {rank: ExitRecord(rank, "finished", 0, step=local, node=node) for rank, (node, local) in enumerate(places)}
    assert read_exit_records(run.attempt(1).exit_dir) == expected


def test_mpi_none_is_refused_within_ten_seconds(cluster, tmp_path):
    """C42, on the real srun."""
    run = RunDir(tmp_path)
    write_run(run, layout(nodes=1, gpus_per_node=4, dp=4), SITE, ["n1"])
    began = time.monotonic()
    done = cluster.run(["srun", "--mpi=none", "--ntasks=4", *RANK, run.path], env=environment(), check=False)
    assert time.monotonic() - began < 10
    assert done.returncode != 0
    assert done.stdout.count("torch was not imported") == 4
    records = read_exit_records(run.attempt(1).exit_dir)
    assert {rank: (r.kind, r.code) for rank, r in records.items()} == dict.fromkeys(range(4), ("config", 78))
    assert (
        records[2].error == "MPI sees 1 rank but Slurm started 4: srun --mpi=none? The site says slurm.mpi = 'pmi2', try: srun --mpi=list"
    )
