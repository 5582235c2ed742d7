"""The SlurmClient that runs Slurm's own commands: one attempt for what is read, with a pause after no answer; patience for deeds.

When slurmctld does not answer, squeue and scontrol already try for 10 to 20 s on their own. A second question within the pause
(5 s, doubled up to a minute) is refused at once, so that a loop that watches ranks is not held up by each of its questions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slurmtrain.clock import Clock
from slurmtrain.errors import SlurmError, SlurmUnavailableError, SubmitUnknownError, one_line
from slurmtrain.shell import RC_NOT_FOUND, RC_TIMED_OUT, Completed, Shell
from slurmtrain.slurm import parse
from slurmtrain.slurm.environment import query_env, submit_env
from slurmtrain.slurm.hostlist import fold
from slurmtrain.slurm.queue_cache import QueueCache
from slurmtrain.slurm.types import JobInfo, NodeInfo, NodePlace, StepInfo

_JOB_ID = re.compile(r"(?P<job>\d+(?:_\d+)?)(?:;(?P<cluster>[\w.-]+))?")
_STEP_ID = re.compile(r"\d+|batch|extern|interactive")
_NO_ANSWER = re.compile(
    r"unable to contact slurm controller|socket timed out|connection refused|connection timed out|zero bytes were transmitted"
    r"|communication connection failure|standby mode|unexpected message received|slurm_persist_conn"
    r"|unable to establish controller machine",
    re.IGNORECASE,
)
_ANYTHING = re.compile("")
"""Of questions that a cluster may not know: no accounting, no sacct, no topology."""
_NEVER = re.compile(r"(?!)")
_NO_LONGER_WAITS = re.compile(r"no longer pending execution", re.IGNORECASE)
_UNKNOWN_NODE = re.compile(r"\bnot found\b")
_UNKNOWN_JOB = re.compile(r"invalid job id|^Job \S+ not found", re.IGNORECASE | re.MULTILINE)
"""The second of a member that is forgotten while others of its array are there."""
_PENDING = re.compile(r"job is pending execution", re.IGNORECASE)
_OVER = re.compile(r"invalid job id|already completing or completed|job/step already|: no error", re.IGNORECASE)
_REFUSED_FOR_NOW = re.compile(
    r"MaxSubmitJob|resource temporarily unavailable|temporarily unable to accept|unable to contact slurm controller \(connect failure\)",
    re.IGNORECASE,
)
"""What sbatch says when the job surely was not accepted and a later try may succeed. A time-out is not among them: slurmctld
may take the job after sbatch has given up (tried)."""
_SUBMIT_LIMIT = re.compile(r"\w*MaxSubmitJob\w*")
SUBMIT_PAUSES_S = (2.0, 4.0, 8.0, 16.0, 30.0)
DEED_PAUSES_S = (1.0, 5.0)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0


@dataclass
class _Pause:
    """How long a daemon that did not answer is left alone."""

    seconds: float = 0.0
    until: float = 0.0
    said: str = ""

    def extend(self, now: float, said: str) -> None:
        self.seconds = min(max(FIRST_PAUSE_S, 2 * self.seconds), LONGEST_PAUSE_S)
        self.until, self.said = now + self.seconds, said


class CliSlurm:
    """Slurm through sbatch, squeue, scontrol, scancel and sacct.

    `env`: the process's environment, from which each command gets what it may see; `cache_dir`: where processes of one user share
    squeue's answer (default: `$XDG_CACHE_HOME/slurmtrain`, none without a home); `timeout_s`: limit of one command; `say`: told
    why a deed takes long.
    """

    def __init__(
        self,
        shell: Shell,
        clock: Clock,
        env: Mapping[str, str],
        *,
        cache_dir: Path | None = None,
        timeout_s: float = 60.0,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._say = say
        self._shell, self._clock, self._env, self._timeout_s = shell, clock, dict(env), timeout_s
        self._cache = QueueCache(cache_dir or _cache_folder(env), f"{os.getuid()}:{env.get('SLURM_CONF', '')}", clock)
        self._config: dict[str, str] | None = None
        self._slurmctld, self._slurmdbd = _Pause(), _Pause()

    def submit(self, script: Path, *, options: Sequence[str] = ()) -> str:
        """See SlurmClient. Raises SubmitUnknownError where it is not known whether the job was accepted."""
        argv = ["sbatch", "--parsable", *options, str(script)]
        for pause_s in (*SUBMIT_PAUSES_S, None):
            done = self._shell.run(argv, timeout_s=self._timeout_s, env=submit_env(self._env))
            if done.ok:
                job_id, cluster = parse.submitted(done.out)
                return f"{job_id};{cluster}" if cluster and not self._is_ours(cluster) else job_id
            if pause_s is None or not _REFUSED_FOR_NOW.search(done.err):
                break
            self._say_again(done, pause_s)
        if _no_answer(done) and not _REFUSED_FOR_NOW.search(done.err):
            maybe = "Slurm may have taken the job all the same: look at `squeue --me` before you submit again"
            raise SubmitUnknownError(f"sbatch got no answer ({last_words(done)}). {maybe}")
        if (limit := _SUBMIT_LIMIT.search(done.err)) and _REFUSED_FOR_NOW.search(done.err):
            waited = f"still so after {sum(SUBMIT_PAUSES_S):.0f} s"
            raise SlurmError(f"{_error(done)}: {limit[0]}, {waited}: nothing was submitted; try again when a job of yours has ended")
        raise _error(done)

    def job(self, job_id: str) -> JobInfo | None:
        job, cluster = _split(job_id)
        done = self._ask(["scontrol", *_clusters(cluster), "show", "job", "-o", job], unknown=_UNKNOWN_JOB)
        found = parse.jobs(done.out) if done.ok else []
        return _pick(found, job)

    def my_jobs(self, *, max_age_s: float = 10.0) -> tuple[float, list[JobInfo]]:
        form = parse.UNIT.join(parse.SQUEUE_COLUMNS)
        age_s, text = self._cache.get(max_age_s, lambda: self._ask(["squeue", "--me", "-h", "-r", "-o", form]).out)
        return age_s, parse.queue(text)

    def finished_job(self, job_id: str) -> JobInfo | None:
        job, cluster = _split(job_id)
        columns = ["-o", ",".join(parse.SACCT_COLUMNS)]
        argv = ["sacct", *_clusters(cluster), "-n", "-P", f"--delimiter={parse.UNIT}", "-X", "--duplicates", "-j", job, *columns]
        done = self._ask(argv, unknown=_ANYTHING)
        return parse.accounted(done.out) if done.ok else None

    def nodes(self, names: Sequence[str]) -> list[NodeInfo]:
        if not names:
            return []
        done = self._ask(["scontrol", "show", "node", "-o", fold(names)], unknown=_UNKNOWN_NODE)
        found = {node.name: node for node in parse.nodes(done.out)}
        return [found[name] for name in names if name in found]

    def places(self, names: Sequence[str]) -> list[NodePlace]:
        done = self._ask(["scontrol", "show", "topology"], unknown=_ANYTHING)
        return parse.places(done.out if done.ok else "", names)

    def config_value(self, key: str) -> str | None:
        if self._config is None:
            self._config = parse.config(self._ask(["scontrol", "show", "config"]).out)
        return self._config.get(key)

    def steps(self, job_id: str) -> list[StepInfo]:
        job, cluster = _split(job_id)
        form = parse.UNIT.join(parse.STEP_COLUMNS)
        return parse.steps(self._ask(["squeue", *_clusters(cluster), "-h", "--steps", "-j", job, "-o", form], unknown=_UNKNOWN_JOB).out)

    def requeue(self, job_id: str) -> None:
        job, cluster = _split(job_id)
        self._do(["scontrol", *_clusters(cluster), "requeue", job], done_already=_PENDING)

    def start_in(self, job_id: str, delay_s: float) -> None:
        when = f"now+{round(delay_s)}" if delay_s >= 1 else "now"
        self._update(job_id, f"StartTime={when}", done_already=_NO_LONGER_WAITS)

    def avoid(self, job_id: str, nodes: Sequence[str]) -> None:
        self._update(job_id, f"ExcNodeList={fold(nodes)}")

    def partition_nodes(self, partition: str) -> list[NodeInfo]:
        done = self._ask(["scontrol", "show", "partition", "-o", partition], unknown=_UNKNOWN_NODE)
        return self.nodes(parse.nodes_of_partition(done.out)) if done.ok else []

    def _update(self, job_id: str, what: str, *, done_already: re.Pattern[str] = _NEVER) -> None:
        job, cluster = _split(job_id)
        self._do(["scontrol", *_clusters(cluster), "update", f"JobId={job}", what], done_already=done_already)

    def cancel(self, job_id: str, *, step: str | None = None, signal: str | None = None, batch: bool = False) -> None:
        job, cluster = _split(job_id)
        if step is not None and not _STEP_ID.fullmatch(step):
            raise SlurmError(f"{step!r} is not a step of job {job}: a number, batch, extern or interactive")
        how = [*(["--batch"] if batch else []), *([f"--signal={signal}"] if signal else [])]
        tries = DEED_PAUSES_S if step is None else ()  # a step's nodes are asked themselves: one that hangs would cost 5 s a try
        self._do(["scancel", *_clusters(cluster), *how, job if step is None else f"{job}.{step}"], done_already=_OVER, pauses_s=tries)

    def _is_ours(self, cluster: str) -> bool:
        try:
            return self.config_value("ClusterName") == cluster
        except SlurmError:
            return False

    def _ask(self, argv: Sequence[str], *, unknown: re.Pattern[str] | None = None) -> Completed:
        """Run a question once; what matches `unknown` is an answer too. Raises SlurmError."""
        pause = self._slurmdbd if argv[0] == "sacct" else self._slurmctld
        wait_s = pause.until - self._clock.monotonic()
        if wait_s > 0:
            raise SlurmUnavailableError(f"{pause.said} (asked again in {wait_s:.0f} s)")
        done = self._shell.run(argv, timeout_s=self._timeout_s, env=query_env(self._env))
        if _no_answer(done):
            error = _error(done)
            pause.extend(self._clock.monotonic(), str(error))
            raise error
        pause.seconds = 0.0
        if done.ok or (unknown is not None and unknown.search(done.err + done.out)):
            return done
        raise _error(done)

    def _do(self, argv: Sequence[str], *, done_already: re.Pattern[str], pauses_s: Sequence[float] = DEED_PAUSES_S) -> None:
        """Run a deed that may safely be done twice, with a few tries where nobody answers. Raises SlurmError."""
        for pause_s in (*pauses_s, None):
            done = self._shell.run(argv, timeout_s=self._timeout_s, env=query_env(self._env))
            if done.ok or (not _no_answer(done) and done_already.search(done.err)):
                return
            if pause_s is None or not _no_answer(done):
                break
            self._say_again(done, pause_s)
        raise _error(done)

    def _say_again(self, done: Completed, pause_s: float) -> None:
        self._say(f"{_error(done)}; again in {pause_s:.0f} s (Ctrl-C gives up)")
        self._clock.sleep(pause_s)


def _cache_folder(env: Mapping[str, str]) -> Path | None:
    base = env.get("XDG_CACHE_HOME") or (f"{env['HOME']}/.cache" if env.get("HOME") else "")
    return Path(base, "slurmtrain") if base else None


def last_words(done: Completed) -> str:
    """What a command of Slurm's said in the end, in one line: its last error, without the program's name."""
    lines = [line.strip() for line in (done.err.strip() or done.out.strip()).splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\b(?:error|fatal):", line)] or [line for line in lines if not line.startswith("Try ")]
    last = errors[-1] if errors else f"ended with code {done.rc}"
    return one_line(re.sub(r"^\w+: (?:(?:error|fatal): )?|^slurm_load_\w+ error: ", "", last))


def _error(done: Completed) -> SlurmError:
    program = done.argv[0]
    if done.rc == RC_NOT_FOUND:
        return SlurmError(f"{program} not found: are you on a login node? (no {program} in PATH: load Slurm's module or set PATH)")
    if _no_answer(done):
        return SlurmUnavailableError(f"{program}: Slurm does not answer: {last_words(done)}")
    return SlurmError(f"{program}: {last_words(done)}")


def _no_answer(done: Completed) -> bool:
    return done.rc == RC_TIMED_OUT or (not done.ok and _NO_ANSWER.search(done.err + done.out) is not None)


def _split(job_id: str) -> tuple[str, str]:
    """(job id, cluster or empty). Raises SlurmError."""
    form = _JOB_ID.fullmatch(job_id)
    if form is None:
        raise SlurmError(f"{job_id!r} is not a job id: write 12, or 12_3 for a member of an array")
    return form["job"], form["cluster"] or ""


def _clusters(cluster: str) -> list[str]:
    return [f"--clusters={cluster}"] if cluster else []


def _pick(found: Sequence[JobInfo], job: str) -> JobInfo | None:
    """The record that was asked for: of an array, the member; of an array's own id, what still waits, else the newest member."""
    master, underscore, task = job.partition("_")
    exact = [info for info in found if info.job_id == job]
    if exact:
        return exact[0]
    if not found:
        return None
    if not underscore:
        return found[0]
    return replace(found[0], job_id=job, array=(master, task))
