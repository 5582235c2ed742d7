"""What is started: the ranks' step and the nodes' check as StepSpecs, and their environment. Pure."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurmtrain.config.job import JobConfig
from slurmtrain.config.plan import Plan
from slurmtrain.config.site import SiteConfig
from slurmtrain.rundir import RunDir
from slurmtrain.steps.launcher import StepSpec

FLIGHT_ENTRIES = 1000
"""Collectives that torch's flight recorder keeps of a rank: some hundred KiB; one takes a microsecond."""
WATCHDOG_MARGIN_S = 300
"""Above the time-out of a collective: torch ends a process whose watchdog itself is stuck."""


@dataclass(frozen=True)
class Setup:
    """The resolved files of a run."""

    run: RunDir
    job: JobConfig
    site: SiteConfig
    plan: Plan

    @property
    def python(self) -> str:
        """Interpreter of the ranks: the job's, the site's, else the one that runs this."""
        return self.job.python or self.site.python.interpreter or sys.executable


def rank_environment(setup: Setup, attempt: int, allocation: Mapping[str, str]) -> dict[str, str]:
    """Variables that the ranks get on top of the allocation's: the site's, then the job's, verbatim, then what nobody has set."""
    given = site_environment(setup.site, allocation, setup.job.environment)
    own = {
        "SLURMTRAIN_ATTEMPT": str(attempt),
        "SLURMTRAIN_RUN": str(setup.run.path),
        "PYTHONPATH": _python_path(setup, {**allocation, **given}),
    }
    return {**given, **own}


def site_environment(site: SiteConfig, allocation: Mapping[str, str], more: Mapping[str, str] | None = None) -> dict[str, str]:
    """What every process of a step gets at a site. `more`: said besides, and before the site; defaults are for what nobody has set."""
    given = {**site.environment.set, **site.fabric.environment, **(more or {})}
    defaults = {"OMP_NUM_THREADS": "1"}
    if site.python.mpi4py_libmpi:
        defaults["MPI4PY_LIBMPI"] = site.python.mpi4py_libmpi
    if site.fabric.rendezvous_interface:
        defaults |= dict.fromkeys(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"), site.fabric.rendezvous_interface)
    defaults |= _recording(site)
    return {**{name: value for name, value in defaults.items() if name not in allocation and name not in given}, **given}


def agent_environment(setup: Setup, allocation: Mapping[str, str]) -> dict[str, str]:
    """That of the nodes' agents: the ranks', without an attempt, by which a process is known as one that may be ended with it."""
    return {name: value for name, value in rank_environment(setup, 0, allocation).items() if name != "SLURMTRAIN_ATTEMPT"}


def _recording(site: SiteConfig) -> dict[str, str]:
    """Torch's flight recorder runs, for whoever asks why ranks hang; on GPUs the watch over torch's own watchdog is set above ours."""
    recorder = {"TORCH_FR_BUFFER_SIZE": str(FLIGHT_ENTRIES)}
    if site.device == "cuda":
        recorder["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] = str(site.timeouts.collective_timeout_s + WATCHDOG_MARGIN_S)
    return recorder


def _python_path(setup: Setup, known: Mapping[str, str]) -> str:
    before = [p for p in known.get("PYTHONPATH", "").split(os.pathsep) if p]
    return os.pathsep.join(dict.fromkeys([str(setup.run.code), *before]))


def rank_spec(
    setup: Setup, attempt: int, nodes: Sequence[str], job_id: str, allocation: Mapping[str, str], *, command: Sequence[str] | None = None
) -> StepSpec:
    """The step of the world; `command`: what each rank runs (default: the trainer, or what looks after the job's own script)."""
    site, slurm, plan, entry = setup.site, setup.site.slurm, setup.plan, setup.job.entry
    program = "slurmtrain.train" if entry is None else "slurmtrain.entry.rank"
    binding = [f"--{kind}={value}" for kind, value in (("cpu-bind", slurm.cpu_bind), ("gpu-bind", slurm.gpu_bind)) if value]
    return StepSpec(
        command=tuple(command or (setup.python, "-u", "-m", program, str(setup.run.path))),
        nodes=tuple(nodes),
        tasks_per_node=plan.tasks_per_node,
        output=setup.run.attempt(attempt).path / "node-%n.log",
        job_id=job_id,
        cpus_per_task=site.node.cpus_per_gpu * plan.gpus_per_node // plan.tasks_per_node,
        gpus_per_node=plan.gpus_per_node if slurm.gpus_option else 0,
        mpi=slurm.mpi if entry is None or entry.mpi else "none",
        environment=rank_environment(setup, attempt, allocation),
        cwd=setup.run.code,
        options=tuple(binding),
    )


def check_spec(
    setup: Setup, attempt: int, nodes: Sequence[str], job_id: str, allocation: Mapping[str, str], *, bare: bool = False
) -> StepSpec:
    """The step that checks the nodes: one task each, no MPI; it sees the GPUs where their health is looked at. `bare`: do they answer?"""
    site, folder = setup.site, setup.run.attempt(attempt)
    sees_gpus = site.device == "cuda" and bool(site.slurm.gpus_option) and setup.job.preflight != "off" and not bare
    return StepSpec(
        command=(setup.python, "-m", "slurmtrain.preflight.node", str(folder.request), *(["--bare"] if bare else [])),
        nodes=tuple(nodes),
        tasks_per_node=1,
        output=folder.path / "check-%n.log",
        job_id=job_id,
        cpus_per_task=site.node.cpus_per_gpu * setup.plan.gpus_per_node,
        gpus_per_node=setup.plan.gpus_per_node if sees_gpus else 0,
        environment=rank_environment(setup, attempt, allocation),
        cwd=setup.run.code,
    )
