"""The supervisor on a stage: real code, real run folder; Slurm, launcher, clock and ranks are fakes that a test moves by the second.

The launcher is not `FakeLauncher`: nothing here may run in a thread, or fake time would pass while the thread waits for its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slurmtrain.errors import LaunchError
from slurmtrain.preflight.answer import NodeAnswer, describe
from slurmtrain.preflight.measuring import measure_on
from slurmtrain.resilience.allocation import SlurmAllocation
from slurmtrain.resilience.composition import Composition, read_setup
from slurmtrain.resilience.records import AttemptRecord, read_attempt
from slurmtrain.resilience.signals import Signals
from slurmtrain.resilience.supervisor import Summary, supervise_with
from slurmtrain.rundir import RunDir
from slurmtrain.slurm.types import JobInfo
from slurmtrain.steps.launcher import StepSpec
from slurmtrain.store.manifest import MANIFEST_NAME, Manifest
from slurmtrain.telemetry.events import Event
from slurmtrain.telemetry.exitfile import ExitRecord
from slurmtrain.telemetry.stopfile import read_stop
from tests.fakes.agents import FakeAgents
from tests.fakes.clock import FakeClock
from tests.fakes.disk import FakeDisk
from tests.fakes.slurm import FakeSlurm
from tests.resilience.runs import make_run

PEER = "peer lost: RuntimeError: Connection closed by peer"
RANKS_LISTEN_S = 2000
ONCE = {"no_progress": 1}
"""Of [recovery]: the first attempt that brings no newer checkpoint is the last, code 93."""


class StageStep:
    """A step that is over when the stage says so, or when it is ended."""

    pid = 4711

    def __init__(self, over: Callable[[], bool]) -> None:
        self._over, self._ended = over, False

    def poll(self) -> int | None:
        if self._ended:
            return -9
        return 0 if self._over() else None

    def wait(self, timeout_s: float | None = None) -> int | None:
        return self.poll()

    def words(self) -> str:
        return ""

    def end(self, grace_s: float) -> None:
        self._ended = True

    def abandon(self) -> None:
        self._ended = True


class Stage:
    """A job of Slurm's with a run folder. `at(t, deed)`: t seconds after the ranks' start; `obedient`: ranks stop when they are asked.

    `silent`: nodes whose check never answers; `answer`: changes to the answers of nodes; `began`: when the ranks were started;
    `recovery`: keys of the job's [recovery] (ONCE: one attempt); `agents.alive = True`: agents run; `left`: whether the step of a killed
    supervisor is there; `left_ended`: logs of such steps that were ended.
    """

    def __init__(self, tmp_path: Path, *, nodes: int = 2, gpus: int = 2, spares: int = 0, array: str | None = None, **make: Any) -> None:
        self.run: RunDir = make_run(tmp_path / "run", launcher="srun", nodes=nodes, gpus=gpus, spares=spares, array=array, **make)
        self.nodes, self.gpus, self.world = nodes, gpus, nodes * gpus
        self.clock, self.disk = FakeClock(), FakeDisk()
        self.slurm = FakeSlurm(self.clock)
        self.lines: list[str] = []
        self.obedient, self.silent = True, set[str]()
        self.answer: dict[str, dict[str, Any]] = {}
        self.step, self.attempt = 0, 0
        self.began = 0.0
        self.job_id = self.slurm.submit(Path("job.sbatch"), options=[f"--nodes={nodes + spares}", f"--comment={self.run.path}"])
        self.environ = {"SLURM_JOB_ID": self.job_id}
        self._plan: list[tuple[float, Callable[[], object]]] = []
        self._plans: dict[int, list[tuple[float, Callable[[], object]]]] = {}
        self.agents = FakeAgents(self.clock)
        self.agents.alive = False
        self.left, self.left_ended = False, list[Path]()
        self.over, self.missing = False, False
        self.specs: list[StepSpec] = []
        self.signals = Signals(self.clock.monotonic)
        self.measure = measure_on

    # --- what the test arranges

    def at(self, seconds: float, deed: Callable[[], object], attempt: int = 0) -> None:
        """Of the ranks' next start, or of the attempt that is named."""
        (self._plans.setdefault(attempt, []) if attempt else self._plan).append((seconds, deed))

    def signal(self, number: int) -> Callable[[], None]:
        return lambda: self.signals.receive(number)

    def job(self, **fields: object) -> JobInfo:
        return self.slurm.change(self.job_id, **fields)

    def train(self, *, until: int, step_s: float = 1.0, save_every: int = 0, attempt: int = 0, first: int = 1) -> None:
        """Steps, one after another, from the start of the ranks on; then all ranks finish."""
        for number, step in enumerate(range(first, until + 1), start=1):
            self.at(number * step_s, lambda step=step: self.make_step(step, step_s), attempt)
            if save_every and step % save_every == 0:
                self.at(number * step_s, lambda step=step: self.save(step), attempt)
        self.at((until - first + 1) * step_s + 0.1, lambda: self.everybody("finished"), attempt)

    # --- what ranks do

    def make_step(self, step: int, step_s: float = 1.0) -> None:
        if self.over:
            return
        self.step = step
        self.emit("step", step=step, loss=3.0, grad_norm=1.0, lr=1e-3, tokens=step * 64, step_s=step_s)

    def emit(self, kind: str, **fields: object) -> None:
        line = Event(kind, self.clock.time(), self.attempt, 0, fields).to_line()
        with open(self.run.event_file(0), "a") as file:
            file.write(line)

    def save(self, step: int, seconds: float = 2.0) -> None:
        folder = self.run.checkpoint(step)
        folder.mkdir(exist_ok=True)
        (folder / MANIFEST_NAME).write_bytes(Manifest(step, self.attempt, step, {}, {}, {}).to_json())
        self.emit("save", step=step, seconds=seconds, bytes=64)

    def record(self, rank: int, kind: str, error: str = "", code: int = 0) -> None:
        path = self.run.attempt(self.attempt).exit_file(rank)
        node = self.recorded(self.attempt).nodes[rank // self.gpus]
        path.write_bytes(ExitRecord(rank, kind, code, self.step, error, node).to_json())

    def everybody(self, kind: str, error: str = "") -> None:
        """All ranks leave their record, and the launcher ends."""
        if not self.over:
            for rank in range(self.recorded(self.attempt).world):
                self.record(rank, kind, error)
            self.over = True

    def leave(self) -> None:
        """The launcher ends."""
        self.over = True

    # --- the launcher

    def argv(self, spec: StepSpec) -> list[str]:
        return list(spec.command)

    def start(self, spec: StepSpec) -> StageStep:
        if self.missing:
            raise LaunchError("srun cannot be started: No such file or directory: srun")
        self.specs.append(spec)
        return self._check(spec) if spec.mpi is None else self._ranks(spec)

    def _check(self, spec: StepSpec) -> StageStep:
        attempt = self.run.attempt(int(spec.output.parent.name))
        for node in spec.nodes:
            if node not in self.silent:
                answer = describe(node, attempt.nonce.read_text(), (), {"SLURM_CPUS_ON_NODE": "8"})
                changed = NodeAnswer(**{**answer.__dict__, **self.answer.get(node, {})})
                attempt.node_answer(node).write_bytes(changed.to_json())
        return StageStep(lambda: not self.silent & set(spec.nodes))

    def _ranks(self, spec: StepSpec) -> StageStep:
        self.over, self.began = False, self.clock.time()
        self.attempt = int(spec.environment["SLURMTRAIN_ATTEMPT"])
        Path(str(spec.output).replace("%n", "000")).write_text(f"attempt {self.attempt} was here\n")
        for seconds, deed in (*self._plan, *self._plans.pop(self.attempt, ())):
            self.clock.at(seconds, self._during(self.attempt, deed))
        self._plan = []
        self._listen()
        return StageStep(lambda: self.over)

    def _during(self, attempt: int, deed: Callable[[], object]) -> Callable[[], object]:
        """A deed of one attempt's ranks: when the next has begun, they do nothing more."""
        return lambda: deed() if self.attempt == attempt else None

    def end_left(self, spec: StepSpec, grace_s: float) -> bool:
        if self.left:
            self.left_ended.append(spec.output)
        was, self.left = self.left, False
        return was

    def _listen(self) -> None:
        """Ranks look for the stop file, ten times a second."""
        reason = read_stop(self.run.attempt(self.attempt).stop)
        if reason and self.obedient and not self.over:
            self.save(self.step)
            self.everybody("stopped", reason)
        if not self.over and self.clock.time() - self.began < RANKS_LISTEN_S:
            self.clock.at(0.1, self._listen)

    # --- the supervisor

    def supervise(self, *, foreground: bool = False, environ: Mapping[str, str] | None = None) -> Summary:
        env = {**self.environ, **(environ or {})}
        allocation = SlurmAllocation(self.slurm, self.clock, env)
        return supervise_with(
            Composition(
                setup=read_setup(self.run),
                environ=env,
                clock=self.clock,
                disk=self.disk,
                client=self.slurm,
                allocation=allocation,
                launcher=self,
                signals=self.signals,
                say=self.lines.append,
                foreground=foreground,
                agents=self.agents,
                measure=self.measure,
            )
        )

    def start_again(self, restarts: int = 1) -> None:
        """As Slurm starts a requeued job: the same id, a restart counted, a process without signals."""
        self.job(state="RUNNING", reason="None", restarts=restarts, nodes=("n1", "n2")[: self.nodes])
        self.environ["SLURM_RESTART_COUNT"] = str(restarts)
        self.signals = Signals(self.clock.monotonic)

    def recorded(self, number: int = 1) -> AttemptRecord:
        record = read_attempt(self.run, number)
        assert record is not None
        return record

    @property
    def exit_code(self) -> int:
        return int(self.run.exit_code.read_text())
