"""The one who strikes in a drill: waits beside the run until it is time, then signals, or does a deed on a node, once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from slurmtrain.cli.doors import Doors
from slurmtrain.config.job import JobConfig
from slurmtrain.errors import SlurmtrainError, UserError, one_line
from slurmtrain.resilience.composition import read_setup
from slurmtrain.resilience.drills import Kind, default_step, faults_for
from slurmtrain.resilience.records import AttemptRecord, read_attempts
from slurmtrain.rundir import RunDir, staging_attempt
from slurmtrain.slurm.environment import local_env, submit_env
from slurmtrain.telemetry.faults import Fault
from slurmtrain.telemetry.reader import EventTail

BETWEEN_SIGNALS_S = 0.05
DEED_LIMIT_S = 900.0
_LOOK_S, _QUICK_S = 0.2, 0.01
_SRUN = ("srun", "--overlap", "--nodes=1", "--ntasks=1", "--mpi=none", "--export=ALL", "--cpus-per-task=1")


def check(kind: Kind, job: JobConfig, *, batch: bool) -> None:
    """Whether this job can have this drill. Raises UserError with what to do."""
    if job.entry is not None and kind.way == "rank":
        raise UserError(f"drill {kind.name} is done by slurmtrain's own trainer: a script of yours ([entry]) does not know of it")
    if not batch and (kind.way == "signal" or kind.deed == "supervisor"):
        raise UserError(f"drill {kind.name} needs a batch job: this site has no Slurm")
    if kind.when == "evaluation" and not job.evaluation.sets:
        raise UserError(f"drill {kind.name}: this job never evaluates: give it [evaluation] sets and every_steps")


@dataclass
class Striker:
    """`job_id`: set once it is known; `struck_t`: when it struck (None where a rank does it to itself); `trouble`: why it could not."""

    run: RunDir
    kind: Kind
    job: JobConfig
    doors: Doors
    rank: int
    step: int | None
    say: Callable[[str], None]
    job_id: str = ""
    struck_t: float | None = None
    trouble: str = ""
    _reached: bool = False
    _over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        if self.step is None:
            self.step = default_step(self.job.steps or 0, self.job.checkpoint.every_steps or 0)

    @property
    def faults(self) -> tuple[Fault, ...]:
        return faults_for(self.kind, self.rank, self.step or 1)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Beside whoever follows the run; a drill that a rank does to itself needs nobody."""
        if self.kind.way == "rank":
            yield
            return
        thread = threading.Thread(target=self._work, name="drill", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(DEED_LIMIT_S if self.struck_t is not None else 5.0)

    def _work(self) -> None:
        try:
            if self._comes():
                self.strike()
        except (SlurmtrainError, OSError) as error:
            self.trouble = one_line(str(error))
            self.say(f"drill: {self.trouble}")

    def strike(self) -> None:
        """Do it. Raises SlurmtrainError."""
        if self.kind.way == "hand":
            self.struck_t = self.doors.clock.time()
            self.say(f"drill: now, by hand: {self.kind.does} ({self.kind.how}); nodes: {' '.join(self._attempt().nodes)}")
        elif self.kind.way == "signal":
            self._signal()
        else:
            self._deed()

    def _signal(self) -> None:
        for number, name in enumerate(self.kind.signals):
            if number:
                self.doors.clock.sleep(BETWEEN_SIGNALS_S)
            if self.struck_t is None:
                self.struck_t = self.doors.clock.time()
            self.doors.slurm.cancel(self.job_id, signal=name, batch=True)
        self.say(f"drill: {' and '.join(self.kind.signals)} sent")

    def _deed(self) -> None:
        record = self._attempt()
        node = record.nodes[0] if self.kind.deed == "supervisor" else record.node_of(self.rank)
        if self.kind.deed == "supervisor" and self.job_id and (job := self.doors.slurm.job(self.job_id)) is not None:
            node = job.batch_host or node
        argv = [read_setup(self.run).python, "-m", "slurmtrain.resilience.deed", self.kind.deed or "", str(self.run.path), str(self.rank)]
        env = {**(submit_env if self.job_id else local_env)(self.doors.env), "SLURMTRAIN_NODE": node, "PYTHONPATH": self._code()}
        if self.job_id:
            argv = [*_SRUN, f"--jobid={self.job_id}", f"--nodelist={node}", f"--chdir={self.run.code}", *argv]
        done = self.doors.shell.run(argv, timeout_s=DEED_LIMIT_S, env=env, cwd=self.run.code)
        if not done.ok:
            raise SlurmtrainError(f"{self.kind.deed} on {node}: {one_line(done.err or done.out or f'exit {done.rc}')}")
        when, _, what = one_line(done.out).partition(" ")
        self.struck_t = float(when)
        self.say(f"drill: {what}")

    def _code(self) -> str:
        before = self.doors.env.get("PYTHONPATH", "")
        return f"{self.run.code}:{before}" if before else str(self.run.code)

    def _attempt(self) -> AttemptRecord:
        records = read_attempts(self.run)
        if not records:
            raise SlurmtrainError("no attempt has begun")
        return records[-1]

    def _comes(self) -> bool:
        """Wait until it is time; False when the run was over before."""
        tail, every = EventTail(self.run.event_file(0)), self.job.evaluation.every_steps or 0
        while not self._over.wait(_QUICK_S if self.kind.when != "step" else _LOOK_S):
            made = [event.fields.get("step", 0) for event in tail.poll() if event.kind == "step"]
            self._reached = self._reached or any(step >= (self.step or 1) for step in made)
            if self._reached and self._is_time(made, every):
                return True
        return False

    def _is_time(self, made: list[int], every: int) -> bool:
        if self.kind.when == "save":
            return any(staging_attempt(one.name) is not None for one in self.run.checkpoints.iterdir())
        return self.kind.when == "step" or any(every and step % every == 0 for step in made)
