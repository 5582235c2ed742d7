"""The stop file of an attempt: the supervisor writes it, rank 0 looks for it; `{"v":1,"reason":"requeue"}`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

from slurmtrain.telemetry.exitfile import StopReason


def stop_bytes(reason: StopReason) -> bytes:
    """The content of a stop file."""
    return (json.dumps({"v": 1, "reason": reason}) + "\n").encode()


def read_stop(path: Path) -> StopReason | None:
    """Why ranks are asked to stop; None while there is no file.

    A file with other content (a person's `touch`, a reason of a newer release) still asks to stop, and counts as "stop".
    """
    try:
        data = path.read_bytes()
    except OSError:
        return None
    try:
        reason = json.loads(data)["reason"]
    except (ValueError, TypeError, KeyError):
        return "stop"
    known: dict[str, StopReason] = {name: name for name in get_args(StopReason)}
    return known.get(reason, "stop") if isinstance(reason, str) else "stop"
