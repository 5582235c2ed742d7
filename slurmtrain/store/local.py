"""What the run folder says of checkpoints on the nodes' own disks; no node's disk is looked at (that is `store.scratch`).

    local.json         {"v":1,"step":500,"attempt":2,"t":1764444444.5,"nodes":["n1","n2"]}
    local-rules.json   {"v":1,"id":"0123456789abcdef","forgotten":[[2,400]]}

`local.json` tells people, and the supervisor, of the newest one that was whole; nobody loads by it. The rules say whose such
checkpoints are (a run that takes the place of a removed one has another `id`), and which count no more: of attempts up to 2 those
above step 400, for a person went back to it.
"""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurmtrain.atomic import SystemDisk, to_json
from slurmtrain.errors import CheckpointError
from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import newest_durable_step
from slurmtrain.syscalls import SYSTEM, Syscalls

LOCAL_VERSION = 1


@dataclass(frozen=True)
class Rules:
    """`forgotten`: pairs of an attempt and a step: what attempts up to it saved above the step does not count.

    >>> rules = Rules("0123456789abcdef", ((2, 400),))
    >>> rules.counts(2, 400), rules.counts(2, 410), rules.counts(1, 410), rules.counts(3, 410)
    (True, False, False, True)
    """

    id: str
    forgotten: tuple[tuple[int, int], ...] = ()

    def counts(self, attempt: int, step: int) -> bool:
        """Whether a checkpoint of this step, saved by this attempt, is one to go on from."""
        return not any(attempt <= last and step > most for last, most in self.forgotten)

    def without(self, attempt: int, step: int) -> Rules:
        """These, and one pair more; pairs that another one covers are left out.

        >>> Rules("f", ((2, 400), (3, 100))).without(4, 300)
        Rules(id='f', forgotten=((3, 100), (4, 300)))
        """
        pairs = {*self.forgotten, (attempt, step)}
        kept = (a for a in pairs if not any(a != b and a[0] <= b[0] and a[1] >= b[1] for b in pairs))
        return Rules(self.id, tuple(sorted(kept)))

    def to_json(self) -> bytes:
        return to_json({"v": LOCAL_VERSION, "id": self.id, "forgotten": [list(pair) for pair in self.forgotten]})


@dataclass(frozen=True)
class LocalNewest:
    """The newest checkpoint that was whole on the disks of these nodes; `t`: unix seconds."""

    step: int
    attempt: int
    t: float
    nodes: tuple[str, ...]

    def to_json(self) -> bytes:
        return to_json({"v": LOCAL_VERSION, "step": self.step, "attempt": self.attempt, "t": self.t, "nodes": list(self.nodes)})


def read_rules(run: RunDir) -> Rules | None:
    """None where there are none, or none that can be understood: no checkpoint on a node's disk then counts.

    Raises OSError, and CheckpointError for those of a newer release.
    """
    raw = _read(run.local_rules)
    try:
        if raw is None:
            return None
        if int(raw["v"]) > LOCAL_VERSION:
            raise CheckpointError(f"{run.local_rules}: format version {raw['v']}: use a newer slurmtrain")
        return Rules(str(raw["id"]), tuple((int(attempt), int(step)) for attempt, step in raw["forgotten"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def make_rules(run: RunDir, calls: Syscalls = SYSTEM) -> Rules:
    """The run's rules; made where there are none. Raises OSError, CheckpointError."""
    if (rules := read_rules(run)) is None:
        rules = Rules(secrets.token_hex(8))
        with suppress(FileExistsError):
            calls.mkdir(run.checkpoints)
        SystemDisk(calls).write(run.local_rules, rules.to_json())
    return rules


def forget_after(run: RunDir, step: int | None, calls: Syscalls = SYSTEM) -> None:
    """Let no checkpoint on a node's disk count that any attempt so far has saved above this step; None: none at all.

    Raises OSError, CheckpointError.
    """
    if (rules := read_rules(run)) is None:
        return
    rules = rules.without(max(run.attempt_numbers(), default=0), -1 if step is None else step)
    SystemDisk(calls).write(run.local_rules, rules.to_json())
    newest = _newest(run)
    if newest is not None and not rules.counts(newest.attempt, newest.step):
        calls.unlink(run.local_json)


def tell_newest(run: RunDir, newest: LocalNewest, calls: Syscalls = SYSTEM) -> None:
    """Publish `local.json`. Raises OSError."""
    SystemDisk(calls).write(run.local_json, newest.to_json())


def newest_local(run: RunDir) -> LocalNewest | None:
    """The newest one that counts, as the run folder knows it; None where there is none. Raises OSError."""
    newest = _newest(run)
    try:
        rules = read_rules(run) if newest is not None else None
    except CheckpointError:
        return None
    return newest if newest is not None and rules is not None and rules.counts(newest.attempt, newest.step) else None


def newest_step(run: RunDir) -> int | None:
    """The newest step that a run can go on from, by either tier, as far as can be told without a look at the nodes' disks.

    Raises OSError.
    """
    local = newest_local(run)
    steps = [newest_durable_step(run.checkpoints), local.step if local else None]
    return max((step for step in steps if step is not None), default=None)


def _newest(run: RunDir) -> LocalNewest | None:
    raw = _read(run.local_json)
    try:
        return None if raw is None else LocalNewest(int(raw["step"]), int(raw["attempt"]), float(raw["t"]), tuple(map(str, raw["nodes"])))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _read(path: Path) -> dict[str, Any] | None:
    """A JSON object; None where there is no file, or none that can be understood. Raises OSError."""
    try:
        raw = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
    return raw if isinstance(raw, dict) else None
