"""A start that is not what was promised ends in seconds, before torch, with a `config` record and the cause."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurmtrain.errors import ConfigError, LaunchError, PlacementError
from slurmtrain.fabric.layout import layout
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.exitfile import read_exit_records
from tests.mpi_world import ROOT, clean_environment, cpu_site, run_world, write_run

pytestmark = pytest.mark.mpi
RANK = Path(__file__).with_name("rank_start.py")


def start_ranks(run: RunDir, environments: list[dict[str, str]]) -> list[tuple[int, str]]:
    """(code, output) of processes that no MPI launcher joins: what srun --mpi=none starts."""
    started = [
        subprocess.Popen(
            [sys.executable, str(RANK), str(run.path)],
            env=clean_environment({"SLURMTRAIN_ATTEMPT": "1", **environment}),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for environment in environments
    ]
    outputs = [process.communicate(timeout=60)[0] for process in started]
    return [(process.returncode, output) for process, output in zip(started, outputs, strict=True)]


def test_n_worlds_of_one_are_refused_with_the_hint(tmp_path):
    """C42: srun --mpi=none."""
    run = RunDir(tmp_path)
    write_run(run, layout(nodes=1, gpus_per_node=2, dp=2), cpu_site(2, launcher="srun", slurm={"mpi": "pmix"}), ["alone1"])
    slurm = {"SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURMD_NODENAME": "alone1"}
    began = time.monotonic()
    ended = start_ranks(run, [{**slurm, "SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)} for i in range(2)])
    assert time.monotonic() - began < 10
    assert [code for code, _ in ended] == [1, 1]
    assert all(output.splitlines()[-1] == "torch was not imported" for _, output in ended)
    records = read_exit_records(run.attempt(1).exit_dir)
    assert {rank: (r.kind, r.code) for rank, r in records.items()} == {0: ("config", 78), 1: ("config", 78)}
    assert "MPI sees 1 rank but Slurm started 2" in records[1].error
    assert "srun --mpi=list" in records[1].error


def test_a_missing_mpi_library_is_explained(tmp_path):
    run = RunDir(tmp_path)
    write_run(run, layout(nodes=1, gpus_per_node=1), cpu_site(1), ["n1"])
    [(code, _)] = start_ranks(run, [{"SLURMTRAIN_NODE": "n1", "MPI4PY_LIBMPI": "/gone/libmpi.so"}])
    record = read_exit_records(run.attempt(1).exit_dir)[0]
    assert (code, record.kind, record.code) == (1, "config", 78)
    assert "/gone/libmpi.so" in record.error
    assert "MPI4PY_LIBMPI" in record.error


def refuse_one_after_the_other() -> list[tuple[str, str, bool]]:
    """(class, words, whether torch was imported by then) of starts that must be refused, tried in one MPI world of 2 nodes x 1."""
    from slurmtrain.runtime.bootstrap import join_world

    block = layout(nodes=2, gpus_per_node=1, tp=2, nvlink_domain="block", block_nodes=2)
    flat = layout(nodes=2, gpus_per_node=1, dp=2)
    lost = cpu_site(1, fabric={"rendezvous_interface": "nope0"})
    starts = [
        (layout(nodes=4, gpus_per_node=1, dp=4), cpu_site(1), ["n1", "n2", "n3", "n4"]),
        (flat, cpu_site(1), ["n1", "n3"]),
        (layout(nodes=1, gpus_per_node=2, dp=2), cpu_site(2), ["n1"]),
        (block, cpu_site(1), ["n1", "n2"]),
        (flat, lost, ["n1", "n2"]),
        (flat, cpu_site(1, device="cuda"), ["n1", "n2"]),
    ]
    seen = []
    for plan, site, nodes in starts:
        with pytest.raises((LaunchError, PlacementError, ConfigError)) as refused:
            join_world(plan, site, nodes, os.environ)
        seen.append((type(refused.value).__name__, str(refused.value), "torch" in sys.modules))
    return seen


def test_broken_promises_are_refused_on_all_ranks_alike():
    # Blocks as Slurm 24.11 reports them would join n1 and n2; here nothing does, so each node is its own domain.
    world = run_world(refuse_one_after_the_other, fresh=True, nodes=2, tasks_per_node=1, env={"CUDA_VISIBLE_DEVICES": ""})
    assert world.results[0] == world.results[1]
    expected = [
        ("LaunchError", "MPI sees 2 ranks, plan.json says a world of 4", False),
        ("LaunchError", "promised on n1, n3, but ranks run on n2 and no rank runs on n3", False),
        ("LaunchError", "promised on n1, but ranks run on n2", False),
        ("PlacementError", "node n1: rank 0 on n1; node n2: rank 1 on n2", False),
        ("ConfigError", "fabric.rendezvous_interface = 'nope0': does not exist", False),
        ("ConfigError", "device = 'cuda': no GPU can be used on n1", True),
    ]
    for (kind, words, torch_loaded), found in zip(expected, world.results[0], strict=True):
        assert (found[0], found[2]) == (kind, torch_loaded)
        assert words in found[1]


def test_a_plan_and_an_attempt_that_differ_are_refused(tmp_path):
    run = RunDir(Path(tmp_path))
    write_run(run, layout(nodes=2, gpus_per_node=1, dp=2), cpu_site(1), ["n1"])
    [(code, output)] = start_ranks(run, [{"SLURMTRAIN_NODE": "n1"}])
    assert code == 1
    assert "attempt 1 has 1 nodes x 1 ranks, plan.json 2 x 1" in output
