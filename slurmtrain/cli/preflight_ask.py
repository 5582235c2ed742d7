"""The nodes of an allocation: those that are looked at, the steps that look, and what came of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from slurmtrain import __version__
from slurmtrain.cli.doors import Doors
from slurmtrain.cli.preflight_target import Target, request_of
from slurmtrain.errors import LaunchError, SlurmError, UserError
from slurmtrain.preflight.answer import NodeAnswer
from slurmtrain.preflight.asking import Check, Wanted, write_nonce
from slurmtrain.preflight.baseline import Baseline, read_baseline, record_path, rows_of, write_baseline
from slurmtrain.preflight.finding import OUT, Finding, tolerated
from slurmtrain.preflight.folder import PreflightDir, make_folder
from slurmtrain.preflight.history import Level
from slurmtrain.preflight.judge import Expected
from slurmtrain.preflight.ledger import FullResult
from slurmtrain.preflight.listing import MPI_WORLD, made_at, wanted
from slurmtrain.preflight.measuring import measure_on, site_baseline
from slurmtrain.preflight.mpi_world import MpiWorld
from slurmtrain.preflight.report import Report, findings_of, passed
from slurmtrain.preflight.request import Request
from slurmtrain.resilience.allocation import Allocation, LocalAllocation, SlurmAllocation
from slurmtrain.resilience.lines import stamp
from slurmtrain.resilience.placement import expected_memory
from slurmtrain.resilience.ranks import agent_environment, site_environment
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.slurm.hostlist import expand, fold
from slurmtrain.steps.launcher import StepLauncher, StepSpec
from slurmtrain.steps.mpiexec import MpiexecLauncher
from slurmtrain.steps.srun import SrunLauncher
from slurmtrain.units import counted

OF_SLURM = "slurm"
"""Under which name stands what Slurm says of a node that is left alone."""
_MEASURE = ("torch", "numpy")
"""Packages whose versions a baseline remembers."""
_CALLED_OFF = frozenset({"CANCELLED", "TIMEOUT", "PREEMPTED", "DEADLINE"})
_MARGIN_S = 10.0
"""Above the limit of one look at a node: so long the last nodes are waited for once half of them have answered."""


@dataclass(frozen=True)
class Asking:
    """One preflight of an allocation. `only`: names of checks; `record`: what is measured becomes the baseline."""

    target: Target
    doors: Doors
    allocation: Allocation
    launcher: StepLauncher
    level: Level
    only: tuple[str, ...]
    folder: PreflightDir
    say: Callable[[str], None]
    record: bool = False

    @property
    def slurm(self) -> SlurmClient | None:
        return self.doors.slurm if self.allocation.job_id else None

    def environment(self) -> dict[str, str]:
        setup, env = self.target.setup, self.doors.env
        return site_environment(self.target.site, env) if setup is None else agent_environment(setup, env)

    def spec(self, nodes: Sequence[str], *command: str) -> StepSpec:
        """A step of one task per node; it sees the GPUs where the site has some."""
        site = self.target.site
        gpus = self.target.gpus_per_node(self.doors.env) if site.device == "cuda" and site.slurm.gpus_option else 0
        return StepSpec(
            command=(self.target.python, "-m", *command),
            nodes=tuple(nodes),
            tasks_per_node=1,
            output=self.folder.check_log,
            job_id=self.allocation.step_job_id,
            cpus_per_task=_cpus(self.doors.env.get("SLURM_JOB_CPUS_PER_NODE", "")),
            gpus_per_node=gpus,
            environment=self.environment(),
            cwd=self.folder.path,
        )


def report(asking: Asking, nodes: Sequence[str]) -> Report:
    """Ask, and judge. What is kept in the folder is the caller's affair. Raises SlurmtrainError, OSError."""
    doors, site = asking.doors, asking.target.site
    began = doors.clock.monotonic()
    alone = left_alone(asking.slurm, nodes)
    request = _written_request(asking)
    asked = [node for node in nodes if node not in {one.node for one in alone}]
    result = _check(asking, request, asked).run()
    found = [*alone, *findings_of(result)]
    found += _ended(asking, _fit(asked, found))
    of_all: dict[str, list[str]] = {}
    if wanted(MPI_WORLD, request):
        of_all[MPI_WORLD] = _fit(asked, found)
        found += [tolerated(one, site.preflight.tolerate) for one in _world(asking).check(of_all[MPI_WORLD])]
    full = FullResult()
    if asking.level == "full":
        of_all |= dict.fromkeys(made_at(request), _fit(asked, found))
        full = _measured(asking, request, _fit(asked, found))
    found += full.findings
    told = Report(
        doors.clock.time(),
        site.name,
        "part" if asking.only else asking.level,
        tuple(nodes),
        tuple(found),
        passed(nodes, result.answers, found, request, of_all=of_all),
        doors.clock.monotonic() - began,
        full.figures,
        full.untested,
        full.notes,
    )
    return _recorded(asking, told, full, result.answers) if asking.record else told


def _ended(asking: Asking, nodes: Sequence[str]) -> list[Finding]:
    """Slurm takes a job away when a node of it is lost: then nothing more can be asked of the others, and none of them is to blame.

    Raises SlurmError where somebody has ended the job: that says nothing about any node.
    """
    job = None if asking.slurm is None else asking.allocation.look(fresh=True).job
    if asking.slurm is None or (job is not None and job.state == "RUNNING"):
        return []
    if job is not None and job.state in _CALLED_OFF:
        raise SlurmError(
            f"job {asking.allocation.job_id} is {job.state} by now: nothing was found out about its nodes; ask again in another"
        )
    said = f"job {asking.allocation.job_id} is {'gone' if job is None else job.state} by now: no further question can be asked"
    return [Finding(node, OF_SLURM, "unknown", said, "salloc --no-kill keeps a job when one of its nodes is lost") for node in nodes]


def _measured(asking: Asking, request: Request, nodes: Sequence[str]) -> FullResult:
    """Measure; where the probes end too early a node that has died since its check is found by another one, and the rest is measured.

    Raises SlurmtrainError, OSError.
    """
    if not nodes:
        return FullResult()
    try:
        return _measure(asking, request, nodes)
    except LaunchError:
        lost = _ended(asking, nodes) or _asked_again(asking, nodes)
        rest = _fit(nodes, lost)
        if not lost or len(rest) == len(nodes):
            raise
    full = _measure(asking, request, rest) if rest else FullResult()
    return replace(full, findings=(*lost, *full.findings))


def _asked_again(asking: Asking, nodes: Sequence[str]) -> list[Finding]:
    asking.say("the probes have ended too early: all nodes are asked once more")
    alone = left_alone(asking.slurm, nodes)
    return [*alone, *findings_of(_check(asking, _written_request(asking), _fit(nodes, alone)).run())]


def _measure(asking: Asking, request: Request, nodes: Sequence[str]) -> FullResult:
    doors = asking.doors
    asking.say(f"{counted(len(nodes), 'node')}: what devices, links and storage reach is measured")
    baseline = Baseline() if asking.record else site_baseline(request, doors.env, asking.say)
    base = asking.spec(nodes, "slurmtrain.runtime.probe")
    return measure_on(asking.launcher, base, request, baseline, doors.clock, _silent, record=asking.record)


def _silent(_: str) -> None:
    """What is worth a note is among the notes of the result."""


def _recorded(asking: Asking, told: Report, full: FullResult, answers: Mapping[str, NodeAnswer]) -> Report:
    """The report, with a note on what was written. Raises ConfigError, OSError."""
    if not told.ok:
        return replace(told, notes=(*told.notes, "nothing is recorded: a baseline is of nodes that are all fit"))
    doors, path = asking.doors, record_path(asking.target.site, asking.doors.env)
    versions = next(iter(answers.values())).packages
    rows = rows_of(full.samples, when=told.t, versions={name: versions[name] for name in _MEASURE if name in versions})
    write_baseline(path, doors.disk, read_baseline(path).merged(rows))
    return replace(told, notes=(*told.notes, f"recorded: {counted(len(rows), 'row')} in {path}"))


def allocation_of(target: Target, doors: Doors) -> Allocation:
    """Raises UserError where there is none."""
    site = target.site
    if site.launcher == "mpiexec":
        return LocalAllocation(1 if target.setup is None else target.setup.plan.nodes)
    if not doors.env.get("SLURM_JOB_ID"):
        raise UserError(
            f"site {site.name} starts steps by srun, and this is not inside an allocation: salloc -N 2 slurmtrain preflight ..., "
            "or --here for this node alone"
        )
    return SlurmAllocation(doors.slurm, doors.clock, doors.env)


def launcher_of(target: Target, doors: Doors) -> StepLauncher:
    if target.site.launcher == "mpiexec":
        return MpiexecLauncher(doors.shell, doors.clock, doors.env)
    return SrunLauncher(doors.shell, doors.clock, doors.env, doors.slurm)


def nodes_of(allocation: Allocation, said: str | None) -> tuple[str, ...]:
    """Those that are asked for; they must be in the allocation. Raises UserError, SlurmError."""
    there = allocation.look().nodes
    if not there:
        raise SlurmError(f"Slurm names no nodes of job {allocation.job_id}: has it ended?")
    if said is None:
        return there
    try:
        named = expand(said)
    except SlurmError as error:
        raise UserError(f"--nodes {said}: {error}") from None
    if not named:
        raise UserError("--nodes: names no node, such as n[1-4,7]")
    foreign = [node for node in named if node not in there]
    if foreign:
        raise UserError(f"--nodes {said}: {fold(foreign)} is not in the allocation, which has {fold(there)}")
    return named


def left_alone(slurm: SlurmClient | None, nodes: Sequence[str]) -> list[Finding]:
    """Nodes that Slurm calls down or drained: told, and not touched. Where Slurm does not answer there are none."""
    if slurm is None:
        return []
    try:
        known = slurm.nodes(nodes)
    except SlurmError:
        return []
    return [
        Finding(
            one.name,
            OF_SLURM,
            "unknown",
            f"{'+'.join(sorted(one.states))}{f' ({_reason(one.reason)})' if one.reason else ''}: not looked at",
            "its state is the administrator's affair, and stays as it is: use other nodes",
        )
        for one in known
        if one.down or "DRAIN" in one.states
    ]


def _reason(text: str) -> str:
    """Slurm's word, with a time that people read.

    >>> _reason("fan broken [ada@0]").partition(" 19")[0]
    'fan broken, by ada at'
    """
    return re.sub(r" \[(\w+)@(\d+)\]$", lambda form: f", by {form[1]} at {stamp(float(form[2]))}", text)


@contextmanager
def folder_for(target: Target, allocation: Allocation, doors: Doors) -> Iterator[PreflightDir]:
    """A folder below the root; it is gone where what was done in it ended by an error, but of one of the launcher's, whose words are there.
    Raises UserError, OSError.
    """
    from slurmtrain.launch.root import check_root

    assert target.root is not None
    check_root(target.root)
    made = make_folder(target.root, allocation.job_id, doors.clock.time())
    try:
        yield made
    except LaunchError:
        raise
    except BaseException:
        made.remove()
        raise


def _fit(nodes: Sequence[str], found: Sequence[Finding]) -> list[str]:
    bad = {one.node for one in found if one.grade in OUT}
    return [node for node in nodes if node not in bad]


def _written_request(asking: Asking) -> Request:
    folder, doors = asking.folder, asking.doors
    request = request_of(
        asking.target,
        doors.env,
        doors.clock.time(),
        only=asking.only,
        shared=(folder.shared,),
        answers=str(folder.nodes_dir),
        nonce=write_nonce(folder.nonce, doors.disk),
        nonce_file=str(folder.nonce),
    )
    doors.disk.write(folder.request, request.to_json())
    return request


def _check(asking: Asking, request: Request, nodes: Sequence[str]) -> Check:
    site, setup, folder = asking.target.site, asking.target.setup, asking.folder
    of_job = setup is not None and bool(asking.allocation.job_id)
    expected = Expected(
        nodes=tuple(nodes),
        nonce=request.nonce,
        version=__version__,
        cpus=site.node.cpus_per_gpu * setup.plan.gpus_per_node if setup is not None and of_job else 0,
        memory_bytes=expected_memory(setup.plan, site) if setup is not None and of_job else 0,
        ulimits=site.environment.ulimits,
        request=request,
    )
    patience_s = site.preflight.timeout_s + _MARGIN_S
    half = Wanted(len(nodes), max(1, len(nodes) // 2), site.timeouts.node_check_timeout_s, patience_s, any_answer=True)
    return Check(
        asking.launcher,
        lambda some: asking.spec(some, "slurmtrain.preflight.node", str(folder.request)),
        expected,
        half,
        answers=folder.nodes_dir,
        logs=folder.path,
        clock=asking.doors.clock,
    )


def _world(asking: Asking) -> MpiWorld:
    site = asking.target.site
    mpi = site.slurm.mpi if site.launcher == "srun" else "pmi2"
    hint = (
        f"the site says slurm.mpi = {mpi!r}: see `srun --mpi=list`, python.mpi4py_libmpi, and whether nodes reach each other"
        if site.launcher == "srun"
        else "use the mpiexec of the MPI library that mpi4py loads"
    )
    return MpiWorld(
        asking.launcher,
        lambda nodes, folder: replace(
            asking.spec(nodes, "slurmtrain.runtime.mpi_size", str(folder)), mpi=mpi, gpus_per_node=0, output=folder / "world-%n.log"
        ),
        asking.folder.world,
        asking.doors.clock,
        hint=hint,
    )


def _cpus(text: str) -> int:
    """The fewest CPUs of a node by SLURM_JOB_CPUS_PER_NODE; 1 where it does not say.

    >>> _cpus("8(x3),4"), _cpus("")
    (4, 1)
    """
    return min((int(count) for count in re.findall(r"(?:^|,)(\d+)", text)), default=1)
