"""attempt.json and what ends it: the outcome; who owns a run: owner.json. Types, JSON, reading."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from slurmtrain.atomic import Disk, to_json
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.causes import Cause
from slurmtrain.units import moment

RECORD_VERSION = 1
OutcomeKind = Literal["finished", "stopped", "requeue", "config", "failed", "node_failure", "launch"]
"""finished: all steps done. stopped: saved because a person asked. requeue: stopped, to be started again. config: refused by a
rank (78). failed: a fault of code. node_failure: a node is gone. launch: no rank ever spoke."""


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended. `cause`: one line; `rank`, `node`: where the first fault was; `signal`: the one that led to the end.

    `category`: the cause in one word; None in records of earlier releases. `fault_t`: when the fault happened, as far as it can be told
    (the newest sign of life before it); `seen_t`: when the supervisor noticed it; seconds since the epoch.
    """

    kind: OutcomeKind
    cause: str
    rank: int | None = None
    node: str = ""
    step: int | None = None
    last_durable_step: int | None = None
    t_end: float = 0.0
    signal: str = ""
    category: Cause | None = None
    fault_t: float | None = None
    seen_t: float | None = None


@dataclass(frozen=True)
class AttemptRecord:
    """One start of the world. `nodes` in the order of the world; `outcome` None while it runs (or when nobody lived to write it).

    `t_checked`: when the check of the nodes was over; `t_ranks`: when the ranks were asked for; None: it did not come so far.
    `passed_over`: nodes of the allocation that were not to be used, and why; `spares`: those that could have been.
    """

    attempt: int
    job_id: str
    restart_count: int
    t_start: float
    nodes: tuple[str, ...]
    spares: tuple[str, ...]
    tasks_per_node: int
    world: int
    python: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    slurmtrain: str = ""
    outcome: Outcome | None = None
    t_checked: float | None = None
    t_ranks: float | None = None
    passed_over: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> bytes:
        return to_json({"v": RECORD_VERSION, **asdict(self)})

    def node_of(self, rank: int) -> str:
        """The node of a world rank; empty for a rank outside the world."""
        index = rank // self.tasks_per_node
        return self.nodes[index] if 0 <= index < len(self.nodes) else ""


@dataclass(frozen=True)
class Owner:
    """Who runs a run: a job (empty: no Slurm) and its restart count, the attempt it makes, host and pid of the supervisor.

    `ended`: the supervisor has ended its ranks and itself; anybody may take over without asking Slurm.
    """

    job_id: str
    restart_count: int
    attempt: int
    host: str
    pid: int
    t: float
    ended: bool = False

    def to_json(self) -> bytes:
        return to_json({"v": RECORD_VERSION, **asdict(self)})

    def __str__(self) -> str:
        job = f"job {self.job_id}, " if self.job_id else ""
        return f"{job}attempt {self.attempt}, pid {self.pid} on {self.host}"


_T = TypeVar("_T", Owner, Outcome, AttemptRecord)


def _known(kind: type[_T], raw: Mapping[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(kind)}
    return {k: v for k, v in raw.items() if k in names}


_OF_OWNER: Mapping[str, Callable[[Any], Any]] = {
    "job_id": str,
    "restart_count": int,
    "attempt": int,
    "host": str,
    "pid": int,
    "t": moment,
    "ended": bool,
}


def read_owner(path: Path) -> Owner | None:
    """An owner or a claim; None where there is none, or nothing that can be read as one."""
    try:
        raw = _known(Owner, json.loads(path.read_bytes()))
        return Owner(**{name: _OF_OWNER[name](value) for name, value in raw.items()})
    except (OSError, ValueError, TypeError, AttributeError, OverflowError):
        return None


def read_attempt(run: RunDir, number: int) -> AttemptRecord | None:
    """One attempt's record; None where it is not there or not whole."""
    try:
        raw = _known(AttemptRecord, json.loads(run.attempt(number).attempt_json.read_bytes()))
        ended = raw.pop("outcome", None)
        outcome = Outcome(**_known(Outcome, ended)) if isinstance(ended, dict) else None
        record = AttemptRecord(**{**raw, "nodes": tuple(raw["nodes"]), "spares": tuple(raw["spares"])}, outcome=outcome)
        return record if _is_sound(record) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _is_sound(record: AttemptRecord) -> bool:
    """Whether its numbers can be reckoned with. Raises TypeError, ValueError for what is none."""
    ended = record.outcome
    times = (record.t_start, record.t_checked, record.t_ranks, *((ended.t_end, ended.fault_t, ended.seen_t) if ended else ()))
    return record.tasks_per_node > 0 and all(moment(t) == t for t in times if t is not None)


def read_attempts(run: RunDir) -> list[AttemptRecord]:
    """All attempts with a record, oldest first."""
    records = (read_attempt(run, number) for number in run.attempt_numbers())
    return [r for r in records if r is not None]


def write_attempt(run: RunDir, disk: Disk, record: AttemptRecord) -> None:
    """Publish attempt.json. Raises OSError."""
    disk.write(run.attempt(record.attempt).attempt_json, record.to_json())


def close_attempt(run: RunDir, disk: Disk, record: AttemptRecord, outcome: Outcome) -> AttemptRecord:
    """Publish attempt.json with its outcome; the record. Raises OSError."""
    closed = replace(record, outcome=outcome)
    write_attempt(run, disk, closed)
    return closed


def differences(before: AttemptRecord | None, now: AttemptRecord) -> list[str]:
    """What changed of python and packages since another attempt, one phrase each: "torch 2.12.0 -> 2.13.0"."""
    if before is None:
        return []
    old = {"python": before.python, "slurmtrain": before.slurmtrain, **before.packages}
    new = {"python": now.python, "slurmtrain": now.slurmtrain, **now.packages}
    changed = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return [f"{name} {old.get(name) or 'absent'} -> {new.get(name) or 'absent'}" for name in changed]
