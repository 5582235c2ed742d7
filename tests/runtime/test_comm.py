"""The door to MPI: what the launcher and MPI say is compared before anything else happens."""

from __future__ import annotations

import pytest

from slurmtrain.errors import LaunchError
from slurmtrain.fabric.layout import layout
from slurmtrain.runtime.comm import check_size, started_tasks
from tests.fakes.comm import run_threads
from tests.mpi_world import cpu_site
from tests.runtime.comm_conformance import check_comm

PLAN = layout(nodes=1, gpus_per_node=4, dp=4)
SRUN = cpu_site(4, launcher="srun", slurm={"mpi": "pmix"})


@pytest.mark.parametrize("size", [2, 3])
def test_the_fake_conforms(size):
    run_threads(size, check_comm)


@pytest.mark.parametrize(
    ("found", "started", "site", "words"),
    [
        # C42: N worlds of one.
        (1, 4, SRUN, "MPI sees 1 rank but Slurm started 4: srun --mpi=none? The site says slurm.mpi = 'pmix', try: srun --mpi=list"),
        (1, 4, cpu_site(4), "MPI sees 1 rank but mpiexec started 4: is this mpiexec of another MPI than mpi4py's library (MPICH 5)?"),
        # C26: as many tasks as nodes, not nodes x GPUs.
        (1, 1, SRUN, "MPI sees 1 rank, plan.json says a world of 4 (1 nodes x 4): start 4 tasks, 4 per node"),
        (8, 8, SRUN, "MPI sees 8 ranks, plan.json says a world of 4 (1 nodes x 4): start 4 tasks, 4 per node"),
        (8, None, SRUN, "MPI sees 8 ranks, plan.json says a world of 4 (1 nodes x 4): start 4 tasks, 4 per node"),
    ],
)
def test_a_world_of_the_wrong_size_is_refused(found, started, site, words):
    with pytest.raises(LaunchError) as refused:
        check_size(found, started, PLAN, site, "MPICH 5")
    assert str(refused.value) == words


def test_the_right_size_passes():
    check_size(4, 4, PLAN, SRUN)
    check_size(4, None, PLAN, SRUN)


@pytest.mark.parametrize(
    ("environ", "launcher", "tasks"),
    [
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "6"}, "srun", 4),
        ({"SLURM_NTASKS": "4"}, "srun", 4),
        ({"SLURM_NTASKS": "6", "PMI_SIZE": "4"}, "mpiexec", 4),
        ({"SLURM_NTASKS": "6"}, "mpiexec", None),
        ({}, "srun", None),
    ],
)
def test_the_batch_shells_count_is_never_read(environ, launcher, tasks):
    assert started_tasks(environ, launcher) == tasks
