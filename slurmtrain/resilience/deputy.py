"""For a supervisor that was lost with its node: the job is requeued once, or ended, by the agent of another node.

With `--no-kill` Slurm does nothing when the batch host is lost: the job would stay RUNNING without a script until its time limit. The
deputies are the first nodes after the batch host; each waits for those before it. One acts at a time: it links `deputy.json` into the
attempt's folder, and a supervisor that wakes up after all finds it there and leaves. What is written comes first, `scontrol requeue`
last: it ends the one who calls it.

| what is known | word |
|---|---|
| Slurm does not answer | wait |
| the job is not RUNNING, or in another start | leave: Slurm has decided |
| the batch host is neither down nor silent, and answers | leave: its script starts the supervisor again, or ends |
| another deputy acts, for less than TAKE_OVER_S | wait: its requeue ends this process |
| FINISHED, STOP, `slurmtrain cancel`, or the run belongs to another job | end the job: a person's word stands, and nobody would end it |
| the supervisor had said its end already, without asking for a requeue | end the job |
| else | requeue |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from slurmtrain.atomic import Disk, SystemDisk, to_json
from slurmtrain.clock import Clock, SystemClock
from slurmtrain.config.stored import read_job
from slurmtrain.errors import EXIT_TEMPFAIL, ConfigError, SlurmError, one_line
from slurmtrain.resilience.allocation import SlurmAllocation
from slurmtrain.resilience.exclude import avoid, blamed
from slurmtrain.resilience.lines import stamp
from slurmtrain.resilience.records import Outcome, Owner, close_attempt, read_attempt, read_owner
from slurmtrain.rundir import RunDir
from slurmtrain.shell import Shell, SystemShell
from slurmtrain.slurm.cli_client import CliSlurm
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.slurm.environment import step_env
from slurmtrain.slurm.types import JobInfo
from slurmtrain.store.local import newest_step
from slurmtrain.telemetry.history import add_act, cancelled, read_acts

COUNT = 4
"""Of deputies: a job of fewer nodes has fewer."""
TURN_S = 45.0
"""How long each waits for the one before it."""
TAKE_OVER_S = 60.0
POLL_S, LOOK_S = 5.0, 2.5
LIMIT_S = 1800.0
PROBE_S = 20.0
Host = Literal["down", "answers", "silent", "unknown"]
Word = Literal["wait", "leave", "end", "requeue"]


@dataclass(frozen=True)
class Scene:
    """What a deputy could find out. `job`: "unknown" where Slurm did not answer; `taken_s`: for how long another deputy has been seen to
    act; `over`: why the run is not to go on; `code`: what the supervisor left for the batch script to end with.
    """

    job: JobInfo | Literal["unknown"] | None
    restart_count: int
    host: Host
    owner: Owner | None
    mine: bool = True
    """The run belongs to this start of the job."""
    over: str = ""
    code: int | None = None
    taken_s: float | None = None


def judge(scene: Scene) -> tuple[Word, str]:
    """The table above."""
    job, host = scene.job, scene.host
    if job == "unknown" or (host == "unknown" and _runs(job, scene.restart_count)):
        return "wait", "Slurm does not answer"
    if job is None or not _runs(job, scene.restart_count):
        return "leave", f"Slurm has decided: the job is {job.state if job else 'gone'}"
    if host == "answers":
        return "leave", f"{job.batch_host} answers: its script starts the supervisor again"
    if scene.taken_s is not None and scene.taken_s < TAKE_OVER_S:
        return "wait", "another deputy acts"
    return _act_on(scene, job)


def _runs(job: JobInfo | None, restart_count: int) -> bool:
    return job is not None and job.state == "RUNNING" and job.restarts == restart_count


def _act_on(scene: Scene, job: JobInfo) -> tuple[Word, str]:
    if scene.over or not scene.mine:
        return "end", scene.over or f"the run belongs to {scene.owner}"
    if scene.owner is not None and scene.owner.ended and scene.code != EXIT_TEMPFAIL:
        return "end", "the supervisor had ended, and asked for no requeue"
    return "requeue", f"batch host {job.batch_host} is lost with the supervisor"


class Deputy:
    """The deeds. `place`: 0 for the first deputy; `probe(host)`: whether a task runs there; `away()`: the agent is to leave at once."""

    def __init__(
        self,
        run: RunDir,
        node: str,
        place: int,
        allocation: SlurmAllocation,
        *,
        client: SlurmClient,
        clock: Clock,
        disk: Disk,
        probe: Callable[[str], bool],
        away: Callable[[], bool] = lambda: False,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._run, self._node, self._place, self._allocation = run, node, place, allocation
        self._client, self._clock, self._disk, self._probe, self._away, self._say = client, clock, disk, probe, away, say
        self._taken_at: float | None = None
        self._told = ""

    def stand_in(self) -> Word:
        """Wait for the turn, look until there is something to do, and do it; what came of it ("wait": nothing, the agent is to leave)."""
        begun = self._clock.monotonic()
        if not self._pause(self._place * TURN_S):
            return "wait"
        while self._clock.monotonic() - begun < LIMIT_S:
            scene = self._look()
            word, why = judge(scene)
            self._tell(why)
            if word == "leave" or (word != "wait" and self._act(word, why, scene)):
                return word
            if not self._pause(POLL_S):
                return "wait"
        return "wait"

    def _tell(self, why: str) -> None:
        if why != self._told:
            self._say(f"{self._node}, deputy: {why}")
        self._told = why

    def _pause(self, seconds: float) -> bool:
        """False when the agent is to leave."""
        end = self._clock.monotonic() + seconds
        while not self._away():
            left_s = end - self._clock.monotonic()
            if left_s <= 0:
                return True
            self._clock.sleep(min(LOOK_S, left_s))
        return False

    def _look(self) -> Scene:
        run, count = self._run, self._allocation.restart_count
        try:
            job = self._client.job(self._allocation.job_id)
        except SlurmError:
            return Scene("unknown", count, "unknown", None)
        owner = read_owner(run.owner_json)
        mine = owner is None or (owner.job_id, owner.restart_count) == (self._allocation.job_id, count)
        host = self._host(job.batch_host) if job is not None and _runs(job, count) else "unknown"
        return Scene(job, count, host, owner, mine, self._over(), _code(run), self._taken_s(owner) if mine else None)

    def _host(self, name: str) -> Host:
        try:
            found = self._client.nodes([name])
        except SlurmError:
            return "unknown"
        if any(info.down for info in found):
            return "down"
        return "answers" if self._probe(name) else "silent"

    def _over(self) -> str:
        run, job_id = self._run, self._allocation.job_id
        if run.finished.exists():
            return "the run is complete"
        if run.stop.exists():
            return "STOP: a person asked for the end"
        return "cancelled by a person" if cancelled(read_acts(run), job_id) else ""

    def _taken_s(self, owner: Owner | None) -> float | None:
        if owner is None or not self._run.attempt(owner.attempt).deputy.exists():
            return None
        now = self._clock.monotonic()
        self._taken_at = now if self._taken_at is None else self._taken_at
        return now - self._taken_at

    def _act(self, word: Word, why: str, scene: Scene) -> bool:
        """False when another deputy was quicker."""
        if scene.owner is not None and scene.mine and not self._take(scene.owner, again=scene.taken_s is not None):
            return False
        with suppress(OSError):
            self._write(word, why, scene)
        try:
            if word == "requeue":
                self._allocation.requeue()
            else:
                self._client.cancel(self._allocation.job_id)
        except SlurmError as error:
            self._say(f"{self._node}, deputy: {error}")
            return False
        return True

    def _take(self, owner: Owner, *, again: bool) -> bool:
        fence = self._run.attempt(owner.attempt).deputy
        said = to_json({"v": 1, "node": self._node, "t": self._clock.time(), "job_id": self._allocation.job_id})
        try:
            if not again:
                return self._disk.create_exclusive(fence, said)
            self._disk.write(fence, said)
        except OSError as error:
            self._say(f"{self._node}, deputy: cannot write {fence}: {error.strerror}")
            return False
        return True

    def _write(self, word: Word, why: str, scene: Scene) -> None:
        """The attempt's end, history, owner and code, as the supervisor would have left them. Raises OSError."""
        run, owner, host = self._run, scene.owner, scene.job.batch_host if isinstance(scene.job, JobInfo) else ""
        record = read_attempt(run, owner.attempt) if owner is not None else None
        if scene.mine and owner is not None and not owner.ended:
            if record is not None and record.outcome is None:
                outcome = self._outcome(host)
                close_attempt(run, self._disk, record, outcome)
                self._avoid(outcome, owner.attempt)
            self._disk.write(run.owner_json, replace(owner, ended=True).to_json())
        what = "requeue" if word == "requeue" else "fail"
        detail = one_line(f"attempt {owner.attempt if owner else '?'}: {why}; {self._node} is its deputy")
        add_act(run, self._disk, self._clock.time(), what, job_id=self._allocation.job_id, detail=detail)

    def _avoid(self, outcome: Outcome, attempt: int) -> None:
        with suppress(ConfigError, ValueError):
            hours = read_job(self._run.job_json).recovery.exclude_hours
            avoid(self._run.exclude_json, self._disk, blamed(outcome), attempt=attempt, now=self._clock.time(), hours=hours)

    def _outcome(self, host: str) -> Outcome:
        now = self._clock.time()
        cause = f"batch host {host} is lost, and the supervisor with it"
        step = newest_step(self._run)
        return Outcome("node_failure", cause, node=host, last_durable_step=step, t_end=now, category="node_failure", seen_t=now)


def _code(run: RunDir) -> int | None:
    try:
        return int(run.exit_code.read_text())
    except (OSError, ValueError):
        return None


def stand_in(run: RunDir, node: str, place: int, environ: Mapping[str, str], *, away: Callable[[], bool]) -> Word:
    """A deputy with the real doors; nothing happens outside a Slurm job."""
    if not environ.get("SLURM_JOB_ID"):
        return "leave"
    shell, clock, disk = SystemShell(), SystemClock(), SystemDisk()
    client = CliSlurm(shell, clock, environ)
    allocation = SlurmAllocation(client, clock, environ)

    def say(line: str) -> None:
        """Into the job's own log, as the supervisor's lines: who is lost has left nobody to print them."""
        with suppress(OSError):
            disk.append(run.slurm_out(allocation.job_id), f"{stamp(clock.time())} {line}\n".encode())

    def probe(host: str) -> bool:
        return answers(shell, environ, allocation.step_job_id, host)

    return Deputy(run, node, place, allocation, client=client, clock=clock, disk=disk, probe=probe, away=away, say=say).stand_in()


def answers(shell: Shell, environ: Mapping[str, str], job_id: str, host: str) -> bool:
    """Whether a task of its own runs and ends on a node of the job, by srun."""
    shape = ("--nodes=1", "--ntasks=1", f"--nodelist={host}", "--overlap", "--mpi=none", "--export=ALL")
    argv = ["srun", f"--jobid={job_id}", "--job-name=deputy", *shape, "true"]
    return shell.run(argv, timeout_s=PROBE_S, env={**step_env(environ), "SLURM_JOB_ID": job_id}).ok
