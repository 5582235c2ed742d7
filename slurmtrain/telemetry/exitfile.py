"""Records by which an attempt is judged: each rank's exit file, and the stop file of the supervisor."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

ExitKind = Literal["finished", "stopped", "config", "error"]
StopReason = Literal["requeue", "stop", "interrupt"]
"""requeue: save, leave, start again. stop: a person asked, save and finish. interrupt: Ctrl-C, the same as stop."""


@dataclass(frozen=True)
class ExitRecord:
    """How one rank ended. `step`: last step completed; `error`: last line of the exception, or of the reason."""

    rank: int
    kind: ExitKind
    code: int
    step: int
    error: str = ""
    node: str = ""

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
