"""What reaches sbatch, srun, the questions and mpiexec (cases C10, C14)."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from slurmtrain.slurm.environment import STEP_OPTIONS, local_env, query_env, step_env, submit_env

OUTER = {
    "PATH": "/bin", "HOME": "/root", "SLURM_CONF": "/odd/slurm.conf", "SLURM_NTASKS": "2", "SBATCH_PARTITION": "debug", "SRUN_DEBUG": "3",
    "SALLOC_ACCOUNT": "a", "SLURM_JOB_ID": "12", "SLURM_CPU_BIND": "quiet,mask_cpu:0x1", "SLURMTRAIN_SITE": "devcluster", "MY_SLURM_X": "y",
    "SLURMD_NODENAME": "n1",
}  # fmt: skip


def test_at_submit_nothing_of_slurms_is_left_but_slurm_conf():
    assert submit_env(OUTER) == {
        "PATH": "/bin", "HOME": "/root", "SLURM_CONF": "/odd/slurm.conf", "SLURMTRAIN_SITE": "devcluster", "MY_SLURM_X": "y",
    }  # fmt: skip


KEPT_IN_THE_JOB = """
SLURM_JOB_ID SLURM_JOBID SLURM_CONF SLURM_JOB_NODELIST SLURM_NODELIST SLURM_NNODES SLURM_JOB_NUM_NODES SLURM_RESTART_COUNT
SLURM_LOCALID SLURM_PROCID SLURMD_NODENAME SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID SLURM_JOB_PARTITION SLURM_SUBMIT_DIR
SLURM_CLUSTER_NAME SLURM_JOB_CPUS_PER_NODE SLURM_TOPOLOGY_ADDR SLURMTRAIN_ROOT PATH CUDA_VISIBLE_DEVICES
"""


def test_inside_the_job_slurms_own_variables_stay():
    env = dict.fromkeys(KEPT_IN_THE_JOB.split(), "x")
    assert step_env(env) == env


DROPPED_IN_THE_JOB = """
SLURM_NTASKS SLURM_NPROCS SLURM_NTASKS_PER_NODE SLURM_TASKS_PER_NODE SLURM_CPU_BIND SLURM_CPU_BIND_TYPE SLURM_CPU_BIND_LIST
SLURM_CPU_BIND_VERBOSE SLURM_MEM_BIND SLURM_DISTRIBUTION SLURM_MPI_TYPE SLURM_EXACT SLURM_CPUS_PER_TASK SLURM_GPUS
SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK SLURM_GPU_BIND SLURM_MEM_PER_NODE SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_HINT
SLURM_THREADS_PER_CORE SLURM_TRES_PER_TASK SLURM_EXPORT_ENV SLURM_TIMELIMIT SLURM_WAIT SLURM_KILL_BAD_EXIT SLURM_OVERLAP
SRUN_CPUS_PER_TASK SRUN_DEBUG SBATCH_EXPORT SLURM_JOB_NAME SLURM_LABELIO
"""


def test_inside_the_job_what_srun_reads_as_options_goes():
    assert step_env(dict.fromkeys(DROPPED_IN_THE_JOB.split(), "x")) == {}


def test_every_option_of_the_manual_page_is_known():
    """What is new in a Slurm that is installed here must be put into one of the two lists."""
    if shutil.which("man") is None:
        pytest.skip("no man here")
    shown = subprocess.run(["man", "-P", "cat", "srun"], capture_output=True, text=True, check=False)
    if shown.returncode or "INPUT ENVIRONMENT" not in shown.stdout:
        pytest.skip("no manual page of srun here")
    page = shown.stdout[shown.stdout.index("INPUT ENVIRONMENT") : shown.stdout.index("OUTPUT ENVIRONMENT")]
    named = set(re.findall(r"^ +(SLURM_[A-Z_]+)", page, re.MULTILINE))
    harmless = "CONF DEBUG DEBUG_FLAGS JOB_ID JOB_NUM_NODES NNODES CPU_BIND MEM_BIND PMI_KVS_NO_DUP_KEYS SRUN_REDUCE_TASK_EXIT_MSG"
    harmless += " STEP_KILLED_MSG_NODE_ID UMASK"
    assert len(named) > 50
    assert named - STEP_OPTIONS <= {f"SLURM_{word}" for word in harmless.split()}


def test_questions_see_no_filters_of_the_user_and_print_seconds():
    env = {
        **OUTER,
        "SQUEUE_FORMAT": "%i",
        "SQUEUE_STATES": "PD",
        "SACCT_FORMAT": "x",
        "SCANCEL_STATE": "PD",
        "SLURM_TIME_FORMAT": "relative",
    }
    asked = query_env(env)
    assert not [name for name in asked if name.startswith(("SQUEUE", "SACCT", "SCANCEL"))]
    assert (asked["SLURM_TIME_FORMAT"], asked["SLURM_CONF"]) == ("%s", "/odd/slurm.conf")


def test_mpiexec_does_not_take_itself_for_a_part_of_a_job():
    env = {**OUTER, "PMI_RANK": "3", "PMIX_RANK": "1", "HYDRA_LAUNCHER": "slurm", "MPI_LOCALRANKID": "0", "MPICH_X": "keep"}
    assert sorted(local_env(env)) == ["HOME", "MPICH_X", "MY_SLURM_X", "PATH", "SLURMTRAIN_SITE", "SLURM_CONF"]


def test_nothing_is_changed_in_place():
    env = dict(OUTER)
    for clean in (submit_env, step_env, query_env, local_env):
        clean(env)
    assert env == OUTER
