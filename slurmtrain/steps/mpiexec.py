"""mpiexec on this one machine: the same ranks without Slurm. Nodes are emulated: a block of ranks each, named by SLURMTRAIN_NODE.

MPICH's Hydra gives each rank a session of its own, and a rank's children may leave even that: whoever belongs to a step is known
by a mark in its environment, so that `end` leaves nobody behind.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

import psutil

from slurmtrain.clock import Clock
from slurmtrain.errors import LaunchError
from slurmtrain.shell import Process, Shell
from slurmtrain.slurm.environment import local_env
from slurmtrain.steps.launcher import Step, StepSpec, tail

MARK = "SLURMTRAIN_STEP"
"""In the environment of every process of a step; its value is the step's own, and begins with what all of its spec have."""
AFTER_KILL_S, VERSION_LIMIT_S = 5.0, 20.0
LOOK_S, LONGEST_LOOK_S = 0.05, 0.5
_LAUNCHERS = frozenset({"mpiexec", "mpiexec.hydra", "hydra_pmi_proxy"})
_HYDRAS_LINE = re.compile(r"^(?:\[(?:mpiexec|proxy)[@:]|=)")


class MpiexecLauncher:
    """`env`: this process's environment; nothing of Slurm's or of an outer MPI's in it reaches the ranks."""

    def __init__(self, shell: Shell, clock: Clock, env: Mapping[str, str]) -> None:
        self._shell, self._clock, self._env = shell, clock, dict(env)
        self._checked: set[str] = set()

    def argv(self, spec: StepSpec) -> list[str]:
        """See StepLauncher. Raises LaunchError where there is no mpiexec."""
        if ":" in spec.command:
            raise LaunchError("mpiexec takes a word that is a lone colon for the start of another program: rename it")
        words = [str(self.program(spec)), "-launcher", "fork"]
        for index, node in enumerate(spec.nodes):
            words += [*([":"] if index else []), "-n", str(spec.tasks_per_node), "-env", "SLURMTRAIN_NODE", node, *spec.command]
        return words

    def start(self, spec: StepSpec) -> Step:
        argv = self.argv(spec)
        self._check(argv[0])
        log = spec.output.with_name(spec.output.name.replace("%n", "000"))
        if not log.parent.is_dir():
            raise LaunchError(f"no folder for the log of the ranks: {log.parent}")
        mark = f"{spec_mark(spec)}-{secrets.token_hex(8)}"
        env = {**local_env(self._env), **spec.environment, MARK: mark}
        try:
            process = self._shell.start(argv, env=env, cwd=spec.cwd, stdout=log)
        except OSError as error:
            raise LaunchError(f"mpiexec cannot be started: {error.strerror}: {error.filename}") from error
        return MpiexecStep(process, self._clock, mark, log)

    def end_left(self, spec: StepSpec, grace_s: float) -> bool:
        prefix = spec_mark(spec) + "-"
        found = bool(members(prefix))
        end_members(prefix, self._clock, grace_s, lambda: None)
        return found

    def program(self, spec: StepSpec) -> Path:
        """The mpiexec beside the interpreter that the ranks run, beside our own, or the one in PATH. Raises LaunchError."""
        beside = [Path(python).with_name("mpiexec") for python in (spec.command[0], sys.executable) if Path(python).is_absolute()]
        found = next((path for path in beside if path.is_file()), None) or shutil.which("mpiexec", path=self._env.get("PATH"))
        if found is None:
            raise LaunchError(f"no mpiexec beside {sys.executable} or in PATH: pip install 'slurmtrain[mpich]'")
        return Path(found)

    def _check(self, program: str) -> None:
        """Open MPI's mpiexec neither knows these options nor forms a world with MPICH's library. Raises LaunchError."""
        if program in self._checked:
            return
        said = self._shell.run([program, "--version"], timeout_s=VERSION_LIMIT_S, env=local_env(self._env))
        if re.search(r"open.?mpi|openrte|prte", said.out + said.err, re.IGNORECASE):
            wheel = _version_of("mpich")
            ours = f"this Python's MPI is the mpich wheel {wheel}" if wheel else "slurmtrain starts ranks with MPICH's (Hydra's)"
            raise LaunchError(f"{program} is Open MPI's, and {ours}: use the mpiexec of `pip install 'slurmtrain[mpich]'`")
        self._checked.add(program)


class MpiexecStep:
    """A started mpiexec and all that descends from it."""

    def __init__(self, process: Process, clock: Clock, mark: str, log: Path) -> None:
        self._process, self._clock, self._mark, self._log = process, clock, mark, log

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout_s: float | None = None) -> int | None:
        return self._process.wait(timeout_s)

    def words(self) -> str:
        return "\n".join(line for line in tail(self._log).splitlines() if _HYDRAS_LINE.match(line))

    def end(self, grace_s: float) -> None:
        end_members(self._mark, self._clock, grace_s, self._process.poll)
        self._process.kill_group()
        self._process.wait(AFTER_KILL_S)

    def abandon(self) -> None:
        self.end(0.0)


def spec_mark(spec: StepSpec) -> str:
    """What the marks of all steps of a spec begin with: steps of one log are of one spec."""
    return hashlib.sha256(os.fsencode(spec.output.absolute())).hexdigest()[:16]


def end_members(mark: str, clock: Clock, grace_s: float, look: Callable[[], object]) -> None:
    """TERM to all whose mark begins so, `grace_s`, then KILL. `look` reaps the launcher. Raises LaunchError for what outlives it."""
    for process in members(mark):
        if _name(process) not in _LAUNCHERS:  # those would take their ranks with them, without grace
            _send(process, signal.SIGTERM)
    deadline, pause_s = clock.monotonic() + grace_s, LOOK_S
    while members(mark) and clock.monotonic() < deadline:
        look()
        clock.sleep(pause_s)
        pause_s = min(pause_s * 1.5, LONGEST_LOOK_S)
    limit = clock.monotonic() + AFTER_KILL_S
    while found := members(mark):
        for process in found:
            _send(process, signal.SIGKILL)
        if clock.monotonic() > limit:
            raise LaunchError(f"processes outlive SIGKILL: {' '.join(str(process.pid) for process in found)}")
        clock.sleep(LOOK_S)


def members(mark: str) -> list[psutil.Process]:
    """Processes whose mark begins so, and that run (zombies do not), wherever they went."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK, "").startswith(mark) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def _send(process: psutil.Process, signum: int) -> None:
    try:
        process.send_signal(signum)
    except psutil.Error:
        return


def _version_of(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
