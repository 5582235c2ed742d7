"""The run folder: this module alone knows the paths in it.

    <root>/<run>/job.toml job.json site.json plan.json      as given; resolved; the site; the chosen layout
                 submit/                                     rendered script, request, submitit's files, exit_code
                 code/                                       the copy of the user's code that every attempt runs
                 attempts/0001/                              attempt.json, node-000.log, exit/rank-00000.json, nodes/<node>.json, stop
                 events/node-000.jsonl                       append-only, one file per node
                 slurm-<jobid>.out                           one line per event
                 checkpoints/step-00000100/                  manifest.json *.h5
                 checkpoints/step-00000100.aside-0001/       one that was set aside: damaged, or left behind by --resume STEP
                 checkpoints/.leases/                        who reads which checkpoint just now
                 checkpoints/local.json                      the newest checkpoint on the nodes' own disks
                 checkpoints/local-rules.json                whose those are, and which of them count no more
                 SAVE                                        touched by a person: save at the next step
                 origin.json                                 the checkpoint of another run that this one began with
                 profile/0001/rank-00000.json                a rank's trace of the steps that metrics.profile names
                 tensorboard/ wandb/                         what these write
                 numerics.json examination.json              steps skipped, ways back; a silent corruption under examination
                 owner.json exclude.json budget.json history.jsonl STOP FINISHED

>>> run = RunDir(Path("/lustre/runs/llama"))
>>> run.attempt(2).exit_file(7).as_posix(), run.checkpoint(100).name
('/lustre/runs/llama/attempts/0002/exit/rank-00007.json', 'step-00000100')
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_CHECKPOINT = re.compile(r"step-(\d{8,})")
_STAGING = re.compile(r"\.step-(\d{8,})\.a(\d{4,})\.tmp")
_TRASH = re.compile(r"\.step-(\d{8,})\.trash")
_ASIDE = re.compile(r"step-(\d{8,})\.aside-(\d{4,})")


def valid_run_name(name: str) -> bool:
    """Letters, digits, dot, dash and underscore, at most 128: safe as a folder, a job name and a word of a log."""
    return _NAME.fullmatch(name) is not None


def checkpoint_step(name: str) -> int | None:
    """The step of a published checkpoint's folder name; None for any other name."""
    form = _CHECKPOINT.fullmatch(name)
    return int(form[1]) if form else None


def staging_attempt(name: str) -> int | None:
    """The attempt of a staging folder's name; None for any other name."""
    form = _STAGING.fullmatch(name)
    return int(form[2]) if form else None


def trash_of_staging(name: str) -> str | None:
    """What a staging folder is renamed to before its files are deleted; None for any other name.

    >>> trash_of_staging(".step-00000010.a0003.tmp")
    '.step-00000010.trash'
    """
    form = _STAGING.fullmatch(name)
    return f".step-{form[1]}.trash" if form else None


def aside_step(name: str) -> int | None:
    """The step of a checkpoint that was set aside; None for any other name."""
    form = _ASIDE.fullmatch(name)
    return int(form[1]) if form else None


def is_trash(name: str) -> bool:
    """Whether a folder of this name is a checkpoint on its way out."""
    return _TRASH.fullmatch(name) is not None


@dataclass(frozen=True)
class AttemptDir:
    """One start of the world."""

    path: Path
    number: int

    @property
    def attempt_json(self) -> Path:
        return self.path / "attempt.json"

    @property
    def stop(self) -> Path:
        """Written by the supervisor (JSON with `reason`); rank 0 looks for it."""
        return self.path / "stop"

    @property
    def exit_dir(self) -> Path:
        return self.path / "exit"

    def exit_file(self, rank: int) -> Path:
        return self.exit_dir / f"rank-{rank:05d}.json"

    @property
    def nodes_dir(self) -> Path:
        """Answers of the check that runs once per node before the world starts."""
        return self.path / "nodes"

    def node_answer(self, node: str) -> Path:
        return self.nodes_dir / f"{node}.json"

    @property
    def nonce(self) -> Path:
        return self.path / "nonce"

    @property
    def request(self) -> Path:
        """What the nodes are asked before the world starts."""
        return self.path / "request.json"

    @property
    def claim(self) -> Path:
        """Who may make this attempt: linked into place by one supervisor, never replaced."""
        return self.path / "claim.json"

    @property
    def plan_json(self) -> Path:
        """The layout of this attempt where it is another than the run's (elastic)."""
        return self.path / "plan.json"

    @property
    def deputy(self) -> Path:
        """Linked into place by whoever acts for a supervisor that is gone: once in an attempt."""
        return self.path / "deputy.json"

    @property
    def stacks_dir(self) -> Path:
        """Where each rank was when the attempt was found to hang."""
        return self.path / "stacks"

    def stack(self, rank: int) -> Path:
        return self.stacks_dir / f"rank-{rank:05d}.txt"

    def flight_record(self, rank: int) -> Path:
        """What torch's flight recorder knew of a rank's collectives."""
        return self.stacks_dir / f"rank-{rank:05d}.flight.json"

    @property
    def meeting(self) -> Path:
        """Where the ranks of a script meet, and from what it goes on: written once, by the first of them."""
        return self.path / "meeting.json"

    def node_log(self, index: int) -> Path:
        return self.path / f"node-{index:03d}.log"

    def check_log(self, index: int) -> Path:
        """What a node's check printed, apart from its answer."""
        return self.path / f"check-{index:03d}.log"

    def rank_log(self, rank: int) -> Path:
        """A rank's own log; written only on error."""
        return self.path / f"rank-{rank:05d}.log"

    def create(self) -> None:
        """Make the folders of a new attempt. Raises OSError as `make` does."""
        self.make(self.path, self.exit_dir, self.nodes_dir)

    def make(self, *folders: Path) -> None:
        """Make folders of this attempt. Raises OSError, also where the run's own folder is gone: it is not begun anew."""
        run = self.path.parent.parent
        if not run.is_dir():
            raise FileNotFoundError(errno.ENOENT, "the run's folder is gone", str(run))
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True)
class RunDir:
    """One training effort: one folder, any number of jobs."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def job_toml(self) -> Path:
        return self.path / "job.toml"

    @property
    def job_json(self) -> Path:
        return self.path / "job.json"

    @property
    def site_json(self) -> Path:
        return self.path / "site.json"

    @property
    def plan_json(self) -> Path:
        return self.path / "plan.json"

    @property
    def submit(self) -> Path:
        return self.path / "submit"

    @property
    def request_json(self) -> Path:
        return self.submit / "request.json"

    @property
    def script(self) -> Path:
        """The batch script; may be given to sbatch by hand."""
        return self.submit / "job.sbatch"

    @property
    def array_script(self) -> Path:
        """The batch script of an array of runs; in the first of them."""
        return self.submit / "array.sbatch"

    def pending_pickle(self, member: int | None) -> Path:
        """The pickle for submitit until sbatch has told the job's id; `member`: task id of an array."""
        return self.submit / ("pending.pkl" if member is None else f"pending_{member}.pkl")

    @property
    def exit_code(self) -> Path:
        """What the batch script ends with; written by the supervisor at its end."""
        return self.submit / "exit_code"

    @property
    def code(self) -> Path:
        return self.path / "code"

    def aside(self, part: str, pid: int) -> Path:
        """Where a process builds, or moves away, a whole run (`part` is empty) or a folder of it, before or after one rename."""
        return self.path / f".{part}.{pid}.tmp" if part else self.path.with_name(f".{self.name}.{pid}.tmp")

    @property
    def attempts(self) -> Path:
        return self.path / "attempts"

    def attempt(self, number: int) -> AttemptDir:
        return AttemptDir(self.attempts / f"{number:04d}", number)

    def attempt_numbers(self) -> list[int]:
        """Numbers of the attempts so far, ascending."""
        if not self.attempts.is_dir():
            return []
        return sorted(int(p.name) for p in self.attempts.iterdir() if p.name.isdigit())

    @property
    def events(self) -> Path:
        return self.path / "events"

    def event_file(self, node_index: int) -> Path:
        return self.events / f"node-{node_index:03d}.jsonl"

    @property
    def supervisor_events(self) -> Path:
        """What the supervisor has seen of the ranks."""
        return self.events / "supervisor.jsonl"

    def slurm_out(self, job_id: str) -> Path:
        return self.path / f"slurm-{job_id}.out"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:08d}"

    def staging(self, step: int, attempt: int) -> Path:
        """Where an attempt builds a checkpoint before one rename publishes it."""
        return self.checkpoints / f".step-{step:08d}.a{attempt:04d}.tmp"

    def trash(self, step: int) -> Path:
        """What a checkpoint is renamed to before its files are deleted."""
        return self.checkpoints / f".step-{step:08d}.trash"

    def set_aside(self, step: int, number: int) -> Path:
        """What a checkpoint is renamed to that no reader shall find and nobody wants deleted; numbers count from 1."""
        return self.checkpoints / f"step-{step:08d}.aside-{number:04d}"

    @property
    def leases(self) -> Path:
        return self.checkpoints / ".leases"

    def lease(self, step: int, token: str) -> Path:
        """Says that somebody reads a checkpoint: retention leaves it alone."""
        return self.leases / f"step-{step:08d}.{token}.json"

    @property
    def local_json(self) -> Path:
        """The newest checkpoint that lies whole on the nodes' own disks: for people and the supervisor."""
        return self.checkpoints / "local.json"

    @property
    def local_rules(self) -> Path:
        """By which the run's checkpoints on nodes' own disks are known, and which of them count no more."""
        return self.checkpoints / "local-rules.json"

    @property
    def save_request(self) -> Path:
        """Touched by `ckpt now`: save at the next step, then go on."""
        return self.path / "SAVE"

    @property
    def origin_json(self) -> Path:
        return self.path / "origin.json"

    def trace(self, attempt: int, rank: int) -> Path:
        """What torch's profiler saw of a rank."""
        return self.path / "profile" / f"{attempt:04d}" / f"rank-{rank:05d}.json"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def wandb(self) -> Path:
        return self.path / "wandb"

    @property
    def owner_json(self) -> Path:
        return self.path / "owner.json"

    @property
    def exclude_json(self) -> Path:
        return self.path / "exclude.json"

    @property
    def budget_json(self) -> Path:
        return self.path / "budget.json"

    @property
    def agents_log(self) -> Path:
        """What the nodes' agents, and their launcher, had to complain of."""
        return self.path / "agents.log"

    @property
    def faults_json(self) -> Path:
        """Faults that ranks are to meet on purpose (drills)."""
        return self.path / "faults.json"

    @property
    def examination_json(self) -> Path:
        """A silent corruption that is being looked into."""
        return self.path / "examination.json"

    @property
    def told_json(self) -> Path:
        """The newest checkpoint that a script of the user's has told of."""
        return self.path / "told.json"

    @property
    def numerics_json(self) -> Path:
        """Steps that were skipped and ways back to checkpoints, in the life of the run."""
        return self.path / "numerics.json"

    @property
    def history_jsonl(self) -> Path:
        return self.path / "history.jsonl"

    @property
    def stop(self) -> Path:
        """Touched by a person: save and finish, no requeue."""
        return self.path / "STOP"

    @property
    def finished(self) -> Path:
        """The run is complete; later jobs exit at once."""
        return self.path / "FINISHED"

    def create(self) -> None:
        """Make the folders of a new run. Raises OSError."""
        for folder in (self.path, self.submit, self.code, self.attempts, self.events, self.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
