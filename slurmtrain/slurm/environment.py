"""Which variables reach sbatch, srun and the commands that ask: pure functions, a new mapping each.

At submit, what an outer job or the user's shell left in SLURM_*, SBATCH_* and SRUN_* would change the job silently; SLURM_CONF
alone stays, for without it sbatch may not find its cluster. Inside a job Slurm's own variables stay (srun without SLURM_JOB_ID
starts a new job; ranks read SLURM_LOCALID), and only those go that srun reads as options and that we give explicitly or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping

_SLURMS_OWN = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_")
_OF_QUERIES = ("SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_", "SINFO_")

_STEP_OPTION_WORDS = """
    ACCOUNT ACCTG_FREQ BCAST BCAST_EXCLUDE BURST_BUFFER CLUSTERS CLUSTER_CONSTRAINT COMPRESS CONSTRAINT CONTAINER
    CONTAINER_ID CORE_SPEC CPUS_PER_GPU CPUS_PER_TASK CPU_FREQ_REQ DELAY_BOOT DEPENDENCY DISABLE_STATUS DISTRIBUTION
    DIST_PLANESIZE EPILOG EXACT EXCLUSIVE EXIT_ERROR EXIT_IMMEDIATE EXPORT_ENV GPUS GPUS_PER_NODE GPUS_PER_SOCKET
    GPUS_PER_TASK GPU_BIND GPU_FREQ GRES GRES_FLAGS HINT HOSTFILE IMMEDIATE JOB_NAME KILL_BAD_EXIT LABELIO MEM_PER_CPU
    MEM_PER_GPU MEM_PER_NODE MPI_TYPE NCORES_PER_SOCKET NETWORK NO_KILL NPROCS NSOCKETS_PER_NODE NTASKS NTASKS_PER_CORE
    NTASKS_PER_GPU NTASKS_PER_NODE NTASKS_PER_SOCKET NTASKS_PER_TRES OPEN_MODE OVERCOMMIT OVERLAP PARTITION POWER
    PROFILE PROLOG QOS REMOTE_CWD REQ_SWITCH RESERVATION RESV_PORTS SEND_LIBS SIGNAL SPREAD_JOB SRUN_MULTI STDERRMODE
    STDINMODE STDOUTMODE STEPMGR STEP_GRES TASKS_PER_NODE TASK_EPILOG TASK_PROLOG TEST_EXEC THREADS THREADS_PER_CORE
    THREAD_SPEC TIMELIMIT TREE_WIDTH TRES_BIND TRES_PER_TASK UNBUFFEREDIO USE_MIN_NODES WAIT WAIT4SWITCH WCKEY WHOLE
    WORKING_DIR
"""
STEP_OPTIONS = frozenset(f"SLURM_{word}" for word in _STEP_OPTION_WORDS.split())
"""What srun reads as options: its manual page (INPUT ENVIRONMENT VARIABLES) and binary of 22.05, and what came up to 24.11."""
_STEP_PREFIXES = ("SRUN_", "SBATCH_", "SALLOC_", "SLURM_CPU_BIND", "SLURM_MEM_BIND")
_PMI = ("PMI_", "PMIX_", "PMI2_", "HYDRA_", "HYDI_", "MPIEXEC_", "MPI_LOCAL")


def submit_env(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of sbatch: nothing of Slurm's but SLURM_CONF."""
    return {name: value for name, value in env.items() if name == "SLURM_CONF" or not name.startswith(_SLURMS_OWN)}


def step_env(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of srun inside the job: Slurm's own variables, without those that srun reads as options."""
    return {name: value for name, value in env.items() if name not in STEP_OPTIONS and not name.startswith(_STEP_PREFIXES)}


def query_env(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of squeue, scontrol, scancel and sacct: no filters or formats of the user's; times as seconds."""
    kept = {name: value for name, value in submit_env(env).items() if not name.startswith(_OF_QUERIES)}
    return {**kept, "SLURM_TIME_FORMAT": "%s"}


def local_env(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of mpiexec on one machine: nothing by which it or a rank would take itself for a part of a Slurm job."""
    return {name: value for name, value in submit_env(env).items() if not name.startswith(_PMI)}
