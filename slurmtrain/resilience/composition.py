"""The doors of a supervisor, and how the real ones are put together from the environment of the batch script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

from slurmtrain.atomic import Disk, SystemDisk
from slurmtrain.clock import Clock
from slurmtrain.config.keeping import outlives_nodes
from slurmtrain.config.stored import read_job, read_plan, read_site
from slurmtrain.errors import LaunchError
from slurmtrain.preflight.ledger import FullResult
from slurmtrain.preflight.measuring import measure_on
from slurmtrain.resilience.agent_steps import LocalStarter, SrunStarter, Starter, StepAgents
from slurmtrain.resilience.agents import Agents, NoAgents
from slurmtrain.resilience.allocation import Allocation, LocalAllocation, SlurmAllocation
from slurmtrain.resilience.budget import Spent
from slurmtrain.resilience.ranks import Setup
from slurmtrain.resilience.signals import Signals
from slurmtrain.resilience.speaker import Speaker
from slurmtrain.rundir import RunDir
from slurmtrain.shell import SystemShell
from slurmtrain.slurm.cli_client import CliSlurm
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.steps.launcher import StepLauncher
from slurmtrain.steps.mpiexec import MpiexecLauncher
from slurmtrain.steps.srun import SrunLauncher


@dataclass(frozen=True)
class Composition:
    """All that a supervisor touches. `client` None: no Slurm here. `command`: what each rank runs instead of the trainer.

    `numbers`: of the orders to the agents, whoever gives them; `unwritten`: the run's budget, while its file cannot be written;
    `measure`: what a full preflight measures nodes by.
    """

    setup: Setup
    environ: Mapping[str, str]
    clock: Clock
    disk: Disk
    client: SlurmClient | None
    allocation: Allocation
    launcher: StepLauncher
    signals: Signals
    say: Callable[[str], None]
    foreground: bool = False
    command: tuple[str, ...] | None = None
    agents: Agents = field(default_factory=NoAgents)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    unwritten: list[Spent] = field(default_factory=list)
    measure: Callable[..., FullResult] = measure_on

    @property
    def run(self) -> RunDir:
        return self.setup.run

    @property
    def outlives_nodes(self) -> bool:
        """Whether the job goes on when a node of it dies (--no-kill); where there is no Slurm nobody takes the allocation away."""
        return not self.allocation.job_id or (not self.foreground and outlives_nodes(self.setup.job, self.setup.site))


def read_setup(run: RunDir) -> Setup:
    """The resolved files of a run. Raises ConfigError."""
    return Setup(run, read_job(run.job_json), read_site(run.site_json), read_plan(run.plan_json))


def compose(
    run: RunDir,
    environ: Mapping[str, str],
    *,
    clock: Clock,
    signals: Signals,
    foreground: bool = False,
    command: tuple[str, ...] | None = None,
) -> Composition:
    """The real doors. Raises ConfigError for damaged files of the run, LaunchError where srun is needed and this is no job."""
    setup = read_setup(run)
    shell, disk = SystemShell(), SystemDisk()
    in_job = bool(environ.get("SLURM_JOB_ID"))
    client: SlurmClient | None = CliSlurm(shell, clock, environ) if in_job else None
    if setup.site.launcher == "mpiexec":
        allocation: Allocation = LocalAllocation(setup.plan.nodes)
        launcher: StepLauncher = MpiexecLauncher(shell, clock, environ)
        starter: Starter = LocalStarter(setup, shell, environ)
    elif client is not None:
        srun = SrunLauncher(shell, clock, environ, client)
        allocation, launcher = SlurmAllocation(client, clock, environ), srun
        deputies = not foreground and outlives_nodes(setup.job, setup.site)
        starter = SrunStarter(setup, srun, environ, allocation.step_job_id, deputies=deputies, restarted=not foreground)
    else:
        raise LaunchError(
            f"site {setup.site.name} starts ranks by srun, and this is no Slurm job: use `slurmtrain submit`, or salloc first"
        )
    tee = run.slurm_out(allocation.job_id or "local") if foreground else None
    say = Speaker(clock, disk, tee)
    agents = StepAgents(starter, clock, say)
    return Composition(setup, environ, clock, disk, client, allocation, launcher, signals, say, foreground, command, agents)
