"""What can be found out about a run: its folder's files, and Slurm's word, asked sparingly, by one squeue that all commands share."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from slurmtrain.cli.doors import Doors
from slurmtrain.cli.runs import find_root, find_run, is_run
from slurmtrain.config.job import JobConfig
from slurmtrain.config.stored import read_job
from slurmtrain.errors import ConfigError, SlurmError, one_line
from slurmtrain.resilience.budget import Spent, read_budget
from slurmtrain.resilience.owner import process_lives
from slurmtrain.resilience.records import AttemptRecord, Owner, read_attempt, read_owner
from slurmtrain.resilience.state import Facts, RunState, run_state
from slurmtrain.rundir import RunDir
from slurmtrain.slurm.types import JobInfo
from slurmtrain.telemetry.history import CANCEL_FAILED, Act, read_acts

QUEUE_AGE_S = 10.0
_TAIL_BYTES = 4096
_BEGINS = frozenset({"submit", "run", "start"})
_LIVELY = ("RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING", "PENDING")
"""Of several jobs of a run (segments), the one that says most."""


@dataclass(frozen=True)
class Seen:
    """A run as it was seen. `age_s`: of Slurm's answer; None where Slurm was not asked, or did not answer."""

    run: RunDir
    facts: Facts
    state: RunState
    owner: Owner | None
    acts: tuple[Act, ...]
    age_s: float | None
    spent: Spent = field(default_factory=Spent)

    @property
    def attempt(self) -> AttemptRecord | None:
        return self.facts.attempt

    @property
    def on_this_host(self) -> bool:
        """Whether the supervisor lives here, where it can be signalled."""
        return self.facts.process is True


def locate(word: str, root: Path | None, doors: Doors) -> RunDir:
    """The run that a person means: a path, else a name or a job id under the root. Raises RunNotFoundError, ConfigError."""
    path = Path(word).absolute()
    if "/" in word and is_run(path):
        return RunDir(path)
    return find_run(word, find_root(root, doors.env, doors.slurm), doors.slurm)


def see(run: RunDir, doors: Doors, *, fresh: bool = False) -> Seen:
    """Gather; the state is decided by `run_state`."""
    acts = read_acts(run)
    owner = read_owner(run.owner_json)
    job_id = _newest_job(acts, owner)
    age_limit = 0.0 if fresh else _age_limit(acts, doors)
    attempt, spent = newest_attempt(run), read_budget(run)
    known = Facts(
        finished=run.finished.exists(),
        stop=run.stop.exists(),
        attempt=attempt,
        job_id=job_id,
        answer="none",
        cancelled=_cancelled(acts),
        foreground=any(act.what == "run" and act.job_id == job_id for act in acts),
        process=_process(owner),
        going_on=owner is not None and not owner.ended and attempt is not None and owner.attempt == attempt.attempt,
        requeue_asked=bool(acts) and acts[-1].what == "requeue",
        over=spent.over if attempt is not None and spent.attempt == attempt.attempt else "",
    )
    if job_id and not known.finished and (known.outcome is None or not known.attempt_is_of_job):
        known = replace(known, log=_last_line(run.slurm_out(job_id)))
    facts, age_s = _with_slurms_word(known, run, doors, age_limit) if job_id and not known.finished else (known, None)
    return Seen(run, facts, run_state(facts), owner, tuple(acts), age_s, spent)


def newest_attempt(run: RunDir) -> AttemptRecord | None:
    """The newest attempt that has a record."""
    for number in reversed(run.attempt_numbers()):
        record = read_attempt(run, number)
        if record is not None:
            return record
    return None


def _last_line(path: Path) -> str:
    """Of a log: empty where there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return one_line(next((line for line in reversed(lines) if line.strip()), ""))


def config_of(run: RunDir) -> JobConfig | None:
    """The resolved job; None where it cannot be read."""
    try:
        return read_job(run.job_json)
    except ConfigError:
        return None


def whole_job(seen: Seen, job_id: str) -> str:
    """What scancel is given: the whole array where its members are segments or links of this run, else the job alone."""
    config = config_of(seen.run)
    own = config is not None and (config.slurm.array is not None or config.slurm.continuation == "chain")
    return job_id.partition("_")[0] if own else job_id


def _newest_job(acts: Sequence[Act], owner: Owner | None) -> str:
    """Id of the newest job; empty: none, or without Slurm."""
    begun = [act.job_id for act in acts if act.what in _BEGINS]
    return begun[-1] if begun else (owner.job_id if owner else "")


def _cancelled(acts: Sequence[Act]) -> bool:
    told = [act.what for act in acts if act.what in _BEGINS or act.what in {"cancel", CANCEL_FAILED}]
    return bool(told) and told[-1] == "cancel"


def _age_limit(acts: Sequence[Act], doors: Doors) -> float:
    """An answer older than the newest act of a person or the supervisor says nothing about it."""
    since = doors.clock.time() - max((act.t for act in acts), default=0.0)
    return max(0.0, min(QUEUE_AGE_S, since))


def _process(owner: Owner | None) -> bool | None:
    if owner is None or owner.host != platform.node():
        return None
    return not owner.ended and process_lives(owner.pid, owner.t)


def _with_slurms_word(known: Facts, run: RunDir, doors: Doors, age_limit: float) -> tuple[Facts, float | None]:
    """The facts with Slurm's word, and its age. A job that is not in the queue is asked for only where the files leave a question."""
    try:
        age_s, jobs = doors.slurm.my_jobs(max_age_s=age_limit)
        mine = [job for job in jobs if _is_of(job, run, known.job_id)]
        if mine:
            return replace(known, job=min(mine, key=_rank), answer="yes"), age_s
        told = known.attempt_is_of_job and known.outcome is not None and known.outcome.kind not in {"requeue", "node_failure"}
        job = None if told else doors.slurm.job(known.job_id) or _remembered(known.job_id, doors)
        return replace(known, job=job, answer="yes"), age_s
    except SlurmError:
        return replace(known, answer="silent"), None


def _remembered(job_id: str, doors: Doors) -> JobInfo | None:
    """What the accounting knows; nothing where there is none."""
    try:
        return doors.slurm.finished_job(job_id)
    except SlurmError:
        return None


def _is_of(job: JobInfo, run: RunDir, job_id: str) -> bool:
    """By id; a member of the same array only when its comment names this run (members may be runs of their own)."""
    same_array = job.job_id.partition("_")[0] == job_id.partition("_")[0]
    return job.job_id == job_id or (same_array and job.comment == str(run.path))


def _rank(job: JobInfo) -> tuple[int, str]:
    return (_LIVELY.index(job.state) if job.state in _LIVELY else len(_LIVELY), job.job_id)
