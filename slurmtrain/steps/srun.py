"""srun: the ranks of an attempt as one step of the job, on nodes that are named, beside whatever else runs there (--overlap).

The step has a name of its own, by which it is found and ended even after srun itself was killed: its tasks would run on, or its
record would keep their CPUs. What the environment holds reaches the ranks as it is (--export=ALL; a list after --export would be
split at its commas).
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurmtrain.clock import Clock
from slurmtrain.errors import LaunchError, SlurmError
from slurmtrain.shell import Process, Shell, Talk
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.slurm.environment import step_env
from slurmtrain.slurm.hostlist import fold
from slurmtrain.steps.launcher import Step, StepSpec, launcher_log, tail

AFTER_KILL_S = 3.0
"""How long srun and its step may linger after the step was killed (on a dead node KillWait + 2 s) before srun is killed too."""
FIRST_LOOK_S, LONGEST_LOOK_S, LEFT_LOOK_S = 0.1, 2.0, 0.5


class SrunLauncher:
    """`env`: that of the batch script, with Slurm's own variables."""

    def __init__(self, shell: Shell, clock: Clock, env: Mapping[str, str], client: SlurmClient) -> None:
        self._shell, self._clock, self._env, self._client = shell, clock, dict(env), client

    def argv(self, spec: StepSpec) -> list[str]:
        """See StepLauncher. Raises LaunchError for a log's path that srun cannot write."""
        return self._argv(spec, ["--open-mode=append", f"--output={output_pattern(spec.output)}"])

    def _argv(self, spec: StepSpec, output: list[str]) -> list[str]:
        gpus = [f"--gpus-per-node={spec.gpus_per_node}"] if spec.gpus_per_node else []
        return [
            "srun",
            f"--jobid={self._job_id(spec)}",
            f"--job-name={step_name(spec)}",
            f"--nodes={len(spec.nodes)}",
            f"--ntasks={spec.tasks}",
            f"--ntasks-per-node={spec.tasks_per_node}",
            f"--nodelist={fold(spec.nodes)}",
            f"--cpus-per-task={spec.cpus_per_task}",
            *gpus,
            "--overlap",
            f"--mpi={spec.mpi or 'none'}",
            f"--kill-on-bad-exit={1 if spec.mpi else 0}",
            "--wait=0",
            "--export=ALL",
            *output,
            *([f"--chdir={spec.cwd}"] if spec.cwd else []),
            *spec.options,
            *spec.command,
        ]

    def start(self, spec: StepSpec) -> Step:
        if not spec.output.parent.is_dir():
            raise LaunchError(f"no folder for the log of the ranks: {spec.output.parent}")
        env = {**step_env(self._env), "SLURM_JOB_ID": self._job_id(spec), **spec.environment}
        log = launcher_log(spec)
        try:
            process = self._shell.start(self.argv(spec), env=env, cwd=spec.cwd, stdout=log)
        except OSError as error:
            raise LaunchError(f"srun cannot be started: {error.strerror}: {error.filename}: is Slurm's srun in PATH here?") from error
        return SrunStep(process, self._clock, self._client, job_id=self._job_id(spec), name=step_name(spec), log=log)

    def end_left(self, spec: StepSpec, grace_s: float) -> bool:
        job_id, name = self._job_id(spec), step_name(spec)
        if not self._left(job_id, name):
            return False
        for signal_name, limit_s in (("TERM", grace_s), (None, AFTER_KILL_S)):
            deadline = self._clock.monotonic() + limit_s
            _cancel_all(self._client, job_id, self._left(job_id, name), signal_name)
            while self._left(job_id, name) and self._clock.monotonic() < deadline:
                self._clock.sleep(LEFT_LOOK_S)
        return True

    def _left(self, job_id: str, name: str) -> list[str]:
        """Steps of this name that Slurm knows; none where it does not answer."""
        try:
            return [info.step for info in self._client.steps(job_id) if info.name == name]
        except SlurmError:
            return []

    def converse(self, spec: StepSpec) -> tuple[Talk, SrunStep]:
        """Start tasks that one speaks with: what is said reaches all of them, and their lines come as they print them, up to 1,024 bytes
        in one piece; their stderr and srun's goes to `spec.output`. Raises LaunchError.
        """
        env = {**step_env(self._env), "SLURM_JOB_ID": self._job_id(spec), **spec.environment}
        try:
            talk = self._shell.converse(self._argv(spec, []), env=env, cwd=spec.cwd, stderr=spec.output)
        except OSError as error:
            raise LaunchError(f"srun cannot be started: {error.strerror}: {error.filename}: is Slurm's srun in PATH here?") from error
        return talk, SrunStep(talk, self._clock, self._client, job_id=self._job_id(spec), name=step_name(spec), log=spec.output)

    def _job_id(self, spec: StepSpec) -> str:
        """The number that srun wants; of an array member's A_a the batch script has it in its environment."""
        job_id = self._env.get("SLURM_JOB_ID", "") if "_" in spec.job_id or not spec.job_id else spec.job_id.partition(";")[0]
        if not job_id.isdigit():
            raise LaunchError(f"srun needs the job's number, not {spec.job_id!r}: start it inside the job (SLURM_JOB_ID is not set)")
        return job_id


class SrunStep:
    """A started srun and the step that it made."""

    def __init__(self, process: Process, clock: Clock, client: SlurmClient, *, job_id: str, name: str, log: Path) -> None:
        self._process, self._clock, self._client = process, clock, client
        self._job_id, self.name, self._log = job_id, name, log

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout_s: float | None = None) -> int | None:
        return self._process.wait(timeout_s)

    def words(self) -> str:
        return tail(self._log)

    def end(self, grace_s: float) -> None:
        if not self._cancel("TERM" if grace_s > 0 else None):
            self._process.signal(signal.SIGTERM)
        if not self._gone_within(grace_s):
            self._cancel(None)
            self._gone_within(AFTER_KILL_S)
        if self._process.poll() is None:
            self._process.kill_group()
            self._process.wait(AFTER_KILL_S)
            self._cancel(None)

    def abandon(self) -> None:
        self._cancel(None)
        self._process.kill_group()

    def _steps(self) -> list[str]:
        """Steps of this name that Slurm knows. Raises SlurmError."""
        return [info.step for info in self._client.steps(self._job_id) if info.name == self.name]

    def _cancel(self, signal_name: str | None) -> bool:
        """Signal the step, or (None) have slurmctld end it; False when there is no step, or Slurm does not tell.

        A signal goes from scancel to each node: one that hangs costs 5 s and an error, and the others have got it. To end a step
        is slurmctld's own work and takes no time.
        """
        try:
            found = self._steps()
        except SlurmError:
            return False
        _cancel_all(self._client, self._job_id, found, signal_name)
        return bool(found)

    def _gone_within(self, grace_s: float) -> bool:
        """Wait until srun and its step are gone. Slurm is asked only once srun is gone, and less and less often."""
        deadline = self._clock.monotonic() + grace_s
        pause_s = FIRST_LOOK_S
        while True:
            if self._process.poll() is not None and self._is_over():
                return True
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                return False
            self._clock.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 1.5, LONGEST_LOOK_S)

    def _is_over(self) -> bool:
        try:
            return not self._steps()
        except SlurmError:
            return False


def _cancel_all(client: SlurmClient, job_id: str, steps: Sequence[str], signal_name: str | None) -> None:
    for step in steps:
        with contextlib.suppress(SlurmError):
            client.cancel(job_id, step=step, signal=signal_name)


def step_name(spec: StepSpec) -> str:
    """A name that no other step of the job has, the same for the same spec: its own, or the log's folder (the attempt) and a digest."""
    if spec.name:
        return spec.name
    said = repr((spec.command, spec.nodes, spec.tasks_per_node, str(spec.output)))
    folder = re.sub(r"[^\w.-]", "", spec.output.parent.name)[:24]
    return f"{folder or 'step'}-{hashlib.sha256(said.encode()).hexdigest()[:8]}"


def output_pattern(output: Path) -> str:
    """The log's path as srun reads it: `%` doubled, `%n` in the name padded to three digits. Raises LaunchError.

    >>> output_pattern(Path("/runs/50% done/node-%n.log"))
    '/runs/50%% done/node-%3n.log'
    """
    if "\\" in str(output):
        raise LaunchError(f"srun cannot write to a path with a backslash: {output}: choose another root for runs")
    name = "%3n".join(part.replace("%", "%%") for part in output.name.split("%n"))
    return str(output.parent).replace("%", "%%") + "/" + name
