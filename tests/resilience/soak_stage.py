"""A stage on which one run meets faults, one after another, through requeues, links and resubmissions; it keeps what does not hold.

The ranks resume from the newest checkpoint that is good, make a step a second, and save every three; each of their starts meets one fault
(`soak_faults`). Slurm and the person do what they would do.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from slurmtrain.preflight.answer import NodeAnswer, describe
from slurmtrain.resilience.agentwire import RankSight
from slurmtrain.resilience.composition import read_setup
from slurmtrain.resilience.records import AttemptRecord, read_attempts
from slurmtrain.resilience.signals import TERM, Signals
from slurmtrain.resilience.supervisor import Summary
from slurmtrain.rundir import checkpoint_step
from slurmtrain.slurm.types import JobInfo
from slurmtrain.steps.launcher import StepSpec
from slurmtrain.telemetry.exitfile import ExitRecord
from slurmtrain.telemetry.history import add_act
from slurmtrain.telemetry.stopfile import read_stop
from tests.resilience.soak_doors import Fate, Killed, SoakAgents, SoakClock, SoakDisk, SoakSlurm
from tests.resilience.stage import Stage, StageStep

START_LIMIT_S = 3_000.0
COLLECTIVE_S = 180.0
SAVE_EVERY, SLURMD_TIMEOUT_S, KILL_WAIT_S = 3, 10.0, 5.0
ANSWER = describe("n1", "", (), {"SLURM_CPUS_ON_NODE": "8"})
"""What a node is like: to look takes some milliseconds."""
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {"nodes": 2},
    "spares": {"nodes": 2, "spares": 2},
    "elastic": {"nodes": 4, "gpus": 1, "recovery": {"elastic": True}},
    "chain": {"nodes": 2, "continuation": "chain", "links": 10},
}


class Step(StageStep):
    """The ranks' step. Its end is theirs."""

    def __init__(self, stage: SoakStage, attempt: int) -> None:
        super().__init__(lambda: stage.over or stage.attempt != attempt)
        self._stage, self._attempt = stage, attempt

    def words(self) -> str:
        return self._stage.launcher_words if self._stage.attempt == self._attempt else ""

    def end(self, grace_s: float) -> None:
        super().end(grace_s)
        if self._stage.attempt == self._attempt:
            self._stage.over = True


class SoakStage(Stage):
    """`meet(stage)`: arranges the next start's fault. `dead`, `mute`: nodes; `guilty`: all that ever had a fault of their own;
    `stopped`: rank that is stopped; `corrupt`: steps whose checkpoint is damaged; `good`: newest good checkpoint.
    """

    def __init__(self, folder: Path, shape: str, rng: random.Random, meet: Callable[[SoakStage], None]) -> None:
        super().__init__(folder, behaviour={"steps": 200}, **SHAPES[shape])
        setup = read_setup(self.run)
        self.rng, self.shape, self._meet_fault = rng, shape, meet
        self.steps, self.total = 200, self.nodes + (setup.plan.spares or 0)
        self.outlives = shape in {"spares", "elastic"}
        self.fate = Fate()
        self.clock = SoakClock(self.fate)
        self.disk = SoakDisk(self.clock, self.fate)
        self.slurm = SoakSlurm(self.clock, self.fate, [f"n{number + 1}" for number in range(self.total + 3)])
        self.agents = SoakAgents(self.clock, self._look)  # type: ignore[assignment]
        self.dead, self.mute, self.guilty = set[str](), set[str](), set[str]()
        self.corrupt = set[int]()
        self.stopped: int | None = None
        self.standing, self.moved_at, self.launcher_words, self.late_s = False, 0.0, "", 0.0
        self.over, self.turn, self.taken, self.met = True, 0, False, Counter[str]()
        self.best: dict[int, int] = {}
        self.excused = set[int]()
        self.link = 0
        self.found: list[str] = []

    # --- what is so

    @property
    def good(self) -> int:
        """Step of the newest good checkpoint; 0: there is none."""
        steps = (checkpoint_step(path.name) for path in self.run.checkpoints.iterdir())
        return max((step for step in steps if step and step not in self.corrupt), default=0)

    def record_of_now(self) -> AttemptRecord:
        """Of the ranks that run, as it was when they were started."""
        return self._record

    def check(self, holds: object, words: str) -> None:
        """What does not hold is kept for the test: an error in here would be taken for one of the supervisor's."""
        if not holds:
            self.found.append(f"attempt {self.attempt}, start {self.turn}: {words}")

    def _look(self, node: str) -> tuple[int, tuple[RankSight, ...]] | None:
        if node in self.dead | self.mute:
            return None
        record = self.record_of_now() if not self.over else None
        if record is None or node not in record.nodes:
            return self.attempt, ()
        first, age = record.nodes.index(node) * self.gpus, self.clock.monotonic() - self.moved_at
        ranks = range(first, first + self.gpus)
        return self.attempt, tuple(self._sight(rank, age) for rank in ranks)

    def _sight(self, rank: int, age: float) -> RankSight:
        struck = rank == self.stopped
        return RankSight(rank, 100 + rank, "stopped" if struck else "runs", "step" if struck else "wait", self.step, age, age, 2 - struck)

    # --- the check of the nodes

    def _check(self, spec: StepSpec) -> StageStep:
        attempt = self.run.attempt(int(spec.output.parent.name))
        nonce = attempt.nonce.read_text()
        for node in set(spec.nodes) - self.silent:
            answer = {**asdict(ANSWER), "node": node, "nonce": nonce, **self.answer.get(node, {})}
            attempt.node_answer(node).write_bytes(NodeAnswer(**answer).to_json())
        return StageStep(lambda: not self.silent & set(spec.nodes))

    # --- ranks

    def _ranks(self, spec: StepSpec) -> StageStep:
        self.check(self.over and not self.left, "a world was started beside another")
        self.attempt, self.began = int(spec.environment["SLURMTRAIN_ATTEMPT"]), self.clock.time()
        self.over, self.standing, self.stopped, self.launcher_words = False, False, None, ""
        Path(str(spec.output).replace("%n", "000")).write_text(f"attempt {self.attempt} was here\n")
        self._record = record = self.recorded(self.attempt)
        self.check(record.nodes == spec.nodes, f"its record has nodes {record.nodes}, its step {spec.nodes}")
        self._set_aside()
        self.step, self.moved_at = self.good, self.clock.monotonic()
        if lost := self.dead & set(spec.nodes):
            self.soon(5.0, lambda: self.lose_ranks(lost))
            return Step(self, self.attempt)
        self.emit("start", world=record.world, layout={}, resumed_from=self.step or None)
        self._meet_fault(self)
        self.soon(1.0, self._train)
        self.soon(0.5, self._listen)
        return Step(self, self.attempt)

    def soon(self, seconds: float, deed: Callable[[], object]) -> None:
        """Something that this attempt's ranks do, if they are still there."""
        attempt = self.attempt
        self.clock.at(seconds, lambda: deed() if self.attempt == attempt and not self.over else None)

    def record(self, rank: int, kind: str, error: str = "", code: int = 0) -> None:
        path = self.run.attempt(self.attempt).exit_file(rank)
        path.write_bytes(ExitRecord(rank, kind, code, self.step, error, self._record.node_of(rank)).to_json())  # type: ignore[arg-type]

    def _set_aside(self) -> None:
        """The loader: damaged checkpoints are moved aside."""
        for step in sorted(self.corrupt):
            self.run.checkpoint(step).rename(self.run.set_aside(step, len(list(self.run.checkpoints.iterdir()))))
        self.corrupt.clear()

    def _train(self) -> None:
        if not self.standing:
            self.make_step(self.step + 1)
            self.moved_at = self.clock.monotonic()
            if self.step % SAVE_EVERY == 0 or self.step >= self.steps:
                self.save(self.step)
            if self.step >= self.steps:
                self.everybody("finished")
        self.soon(1.0, self._train)

    def _listen(self) -> None:
        reason = read_stop(self.run.attempt(self.attempt).stop)
        if reason and not self.standing:
            self.save(self.step)
            self.everybody("stopped", reason)
        self.soon(0.5, self._listen)

    def save(self, step: int, seconds: float = 0.2) -> None:
        if step:
            self.corrupt.discard(step)
            super().save(step, seconds)

    def everybody(self, kind: str, error: str = "") -> None:
        for rank in range(self.record_of_now().world):
            self.record(rank, kind, error)
        self.over = True

    def stand(self) -> None:
        """All ranks stand still, until the collectives' own limit ends them."""
        self.standing = True
        self.soon(COLLECTIVE_S, lambda: self.lose_ranks(set(), "peer lost: RuntimeError: Timed out waiting 180000ms for recv operation"))

    def lose_ranks(self, nodes: set[str], error: str = "peer lost: RuntimeError: Connection closed by peer") -> None:
        """Ranks on these nodes are gone without a word, the others lose them."""
        record = self.record_of_now()
        for rank in range(record.world):
            if record.node_of(rank) not in nodes:
                self.record(rank, "error", error, code=1)
        self.over = True

    # --- Slurm

    def lose_node(self, node: str) -> None:
        """Power is gone: at once its ranks, later Slurm's patience."""
        self.dead.add(node)
        self.guilty.add(node)
        self.silent.add(node)
        host = self.job().batch_host
        if not self.over and node in self.record_of_now().nodes:
            self.lose_ranks({node})
        start = self.turn
        self.clock.at(SLURMD_TIMEOUT_S, lambda: self._noticed(node) if self.turn == start else None)
        if node == host:
            self.over = self.taken = True
            self._takes("NodeDown")
            raise Killed

    def _noticed(self, node: str) -> None:
        self.slurm.node(node, "DOWN")
        job = self.job()
        if job.state != "RUNNING" or node not in job.nodes:
            return
        if self.outlives:
            self.job(nodes=tuple(one for one in job.nodes if one != node))
        else:
            self.take_back("NodeDown")

    def take_back(self, reason: str, **fields: object) -> None:
        """Slurm requeues the job (of a chain: ends the link): TERM, and KILL to what is left."""
        self._takes(reason, **fields)
        self.signals.receive(TERM)
        start = self.turn
        self.clock.at(KILL_WAIT_S, lambda: self._kill() if self.turn == start else None)

    def _takes(self, reason: str, **fields: object) -> None:
        job = self.job()
        if self.shape == "chain":
            self.job(state="NODE_FAIL" if reason == "NodeDown" else "PREEMPTED", reason="None", **fields)
        else:
            self.job(state="PENDING", reason="BeginTime", restarts=job.restarts + 1, **fields)

    def limit(self) -> None:
        """The time limit: TERM, KILL."""
        self.job(state="COMPLETING", reason="TimeLimit")
        self.signals.receive(TERM)
        start = self.turn
        self.clock.at(KILL_WAIT_S, lambda: self._kill() if self.turn == start else None)

    def _kill(self) -> None:
        self.over = self.taken = True
        raise Killed

    def end_left(self, spec: StepSpec, grace_s: float) -> bool:
        left, self.left = self.left and not self.over, False
        self.over = True
        return left

    # --- starts

    def submit(self) -> None:
        """A person submits the run, or resumes it."""
        self.run.stop.unlink(missing_ok=True)
        array = self.slurm.submit(Path("job.sbatch"), options=[f"--nodes={self.total}", f"--comment={self.run.path}"])
        add_act(self.run, self.disk, self.clock.time(), "submit", job_id=array)
        self._first, self.link, self.job_id = self.slurm.job(array), 0, array
        self.environ = {"SLURM_JOB_ID": array}

    def give(self) -> None:
        """The job (or the next link) starts on nodes that are up, and not excluded."""
        for node in self.dead | self.mute:
            self.slurm.node(node, "IDLE")
        self.dead, self.mute, self.silent, self.answer = set(), set(), set(), {}
        job = self.job()
        if self.shape == "chain":
            self._next_link()
        nodes = [f"n{number + 1}" for number in range(self.total + 3) if f"n{number + 1}" not in job.avoided][: self.total]
        self.check(len(nodes) == self.total, f"Slurm is told to leave out too much: {job.avoided}")
        now = self.clock.time()
        self.job(state="RUNNING", reason="None", nodes=tuple(nodes), batch_host=nodes[0], start_time=now, end_time=None, preempt_time=None)
        self.environ["SLURM_RESTART_COUNT"] = str(job.restarts)
        self.signals, self.turn, self.taken = Signals(self.clock.monotonic), self.turn + 1, False
        self.agents.gone, self.clock.limit = False, now + START_LIMIT_S
        self.over, self.left = True, False

    def _next_link(self) -> None:
        first = self._first
        assert isinstance(first, JobInfo)
        self.link += 1
        self.job_id = f"{first.job_id}_{self.link}"
        self.slurm.put(replace(first, job_id=self.job_id))
        self.environ = {
            "SLURM_JOB_ID": str(1000 + self.turn),
            "SLURM_ARRAY_JOB_ID": first.job_id,
            "SLURM_ARRAY_TASK_ID": str(self.link),
            "SLURM_ARRAY_TASK_MAX": "10",
        }

    def script(self) -> Summary | None:
        """The batch script: a supervisor, and three more where it is killed and Slurm has not taken the job; None: none came to its end."""
        for _ in range(4):
            try:
                return self.supervise()
            except Killed:
                self.left = not self.over
                if self.taken or self.run.exit_code.exists():
                    break
                self.signals = Signals(self.clock.monotonic)
            finally:
                self.fate.spare()  # of this supervisor: what comes after it is Slurm's, or a person's
        self.left, self.over = False, True
        return None

    def avoided(self) -> dict[str, dict[str, Any]]:
        return json.loads(self.run.exclude_json.read_bytes())["nodes"] if self.run.exclude_json.exists() else {}

    def attempts(self) -> list[AttemptRecord]:
        return read_attempts(self.run)
