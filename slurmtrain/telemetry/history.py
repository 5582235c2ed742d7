"""history.jsonl: who submitted, ran, stopped, cancelled and requeued a run, one JSON line an act."""

from __future__ import annotations

import getpass
import json
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from slurmtrain.atomic import Disk
from slurmtrain.rundir import RunDir
from slurmtrain.units import moment

HISTORY_VERSION = 1
CANCEL_FAILED = "cancel failed"
"""The act that takes back a `cancel` which Slurm did not hear."""


@dataclass(frozen=True)
class Act:
    """One act. `t`: seconds since the epoch; `who`: user@host; `what`: submit run start cancel stop requeue finish fail ..."""

    t: float
    who: str
    what: str
    job_id: str = ""
    detail: str = ""

    def to_line(self) -> bytes:
        return (json.dumps({"v": HISTORY_VERSION, **asdict(self)}) + "\n").encode()


def whoami() -> str:
    """user@host; a user without a name is its number."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{platform.node()}"


def add_act(run: RunDir, disk: Disk, t: float, what: str, *, job_id: str = "", detail: str = "") -> None:
    """Append one act of this process's user. Raises OSError."""
    disk.append(run.history_jsonl, Act(t, whoami(), what, job_id, detail).to_line())


def _lines(run: RunDir) -> Iterator[str]:
    try:
        yield from run.history_jsonl.read_text(errors="replace").splitlines()
    except OSError:
        return


def read_acts(run: RunDir) -> list[Act]:
    """All acts, oldest first; lines that are torn or not acts are passed over."""
    acts: list[Act] = []
    for line in _lines(run):
        try:
            raw = json.loads(line)
            acts.append(Act(moment(raw["t"]), str(raw["who"]), str(raw["what"]), str(raw.get("job_id", "")), str(raw.get("detail", ""))))
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
    return acts


def cancelled(acts: Sequence[Act], job_id: str) -> bool:
    """Whether a person cancelled this job (of an array: any member of it) since the run was last submitted."""
    array, word = job_id.partition("_")[0], ""
    for act in acts:
        if act.what in {"submit", "run"}:
            word = ""
        elif act.what in {"cancel", CANCEL_FAILED} and act.job_id.partition("_")[0] == array:
            word = act.what
    return word == "cancel"
