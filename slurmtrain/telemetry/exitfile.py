"""Records by which an attempt is judged: each rank's exit file, and the stop file of the supervisor."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from slurmtrain.telemetry.causes import Cause

ExitKind = Literal["finished", "stopped", "config", "error"]
StopReason = Literal["requeue", "stop", "interrupt"]
"""requeue: save, leave, start again. stop: a person asked, save and finish. interrupt: Ctrl-C, the same as stop."""

PEER_LOST = "peer lost: "
"""Begins the error of a rank that failed only because another one was gone."""
_FOLLOWS = re.compile(
    r"gloo.*(closed by peer|reset by peer|broken pipe|timed out|pair closure)"
    r"|ncclRemoteError|communicator was aborted|collective operation timeout"
    r"|^Dist(Network|Store)Error",
    re.IGNORECASE | re.DOTALL,
)
"""Words of gloo 2.13, NCCL and torch's TCPStore. A time-out counts: the peer that did not come is the cause."""

_GLOO_TALK = re.compile(r"\[/\S+:\d+\] | This is typically caused by .*", re.DOTALL)


@dataclass(frozen=True)
class ExitRecord:
    """How one rank ended. `step`: last step completed; `error`: last line of the exception, or of the reason.

    `category`: the cause by the exception's type; None where there was none, and in records of earlier releases.
    """

    rank: int
    kind: ExitKind
    code: int
    step: int
    error: str = ""
    node: str = ""
    category: Cause | None = None

    def to_json(self) -> bytes:
        return (json.dumps({"v": 1, **asdict(self)}) + "\n").encode()


def read_exit_records(exit_dir: Path) -> dict[int, ExitRecord]:
    """Records by rank; a file that is not whole counts as none."""
    records: dict[int, ExitRecord] = {}
    for path in sorted(exit_dir.glob("rank-*.json")):
        try:
            raw = json.loads(path.read_bytes())
            raw.pop("v", None)
            record = ExitRecord(**raw)
        except (ValueError, TypeError, OSError):
            continue
        records[record.rank] = record
    return records


def peer_lost(error: str) -> str:
    """A follower's error, marked, without the place in gloo's source and its advice.

    >>> peer_lost("RuntimeError: [/src/gloo/tcp/pair.cc:537] Read error: reset by peer. This is typically caused by a remote worker")
    'peer lost: RuntimeError: Read error: reset by peer.'
    """
    return PEER_LOST + _GLOO_TALK.sub("", error)


def is_follower(error: str) -> bool:
    """Whether an error is what a rank says when a peer is gone (gloo, NCCL, TCPStore): not the first cause.

    >>> is_follower("peer lost: RuntimeError: ..."), is_follower("RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer")
    (True, True)
    >>> is_follower("ValueError: token 9 is outside the vocabulary")
    False
    """
    return error.startswith(PEER_LOST) or _FOLLOWS.search(error) is not None
