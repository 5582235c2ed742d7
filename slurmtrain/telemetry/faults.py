"""Faults on purpose, as data: which rank meets what at which step of which attempt. `slurmtrain drill` and tests write them; ranks obey.

faults.json: `{"v":1,"faults":[{"kind":"exit","rank":3,"step":40,"attempt":1,"value":7}]}`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal, get_args

FaultKind = Literal["exit", "signal", "exception", "memory", "nan", "bitflip", "slow", "stop", "sleep"]
"""exit: leave with code `value`, without a word. signal: send itself signal `value`. exception: raise. memory: ask for more host memory
than it may have (its own limit, RLIMIT_AS). nan: its gradient is not a number. bitflip: one bit of one of its parameters turns over,
after the update. slow: `value` seconds longer, from this step on. stop: SIGSTOP to itself. sleep: stand still for `value` seconds, in
this step."""


@dataclass(frozen=True)
class Fault:
    """`step`: the first at which it is due (before that step's forward pass, `bitflip` after its update); `attempt` 0: in all."""

    kind: FaultKind
    rank: int
    step: int
    attempt: int = 1
    value: float = 1.0


def read_faults(path: Path) -> tuple[Fault, ...]:
    """None where there is no file; what is not one is left out."""
    try:
        raw = json.loads(path.read_bytes())["faults"]
        names = {one.name for one in fields(Fault)}
        known = [Fault(**{k: v for k, v in one.items() if k in names}) for one in raw]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return ()
    return tuple(one for one in known if one.kind in get_args(FaultKind))


def faults_bytes(faults: tuple[Fault, ...]) -> bytes:
    """The content of faults.json."""
    return (json.dumps({"v": 1, "faults": [asdict(one) for one in faults]}) + "\n").encode()
