"""Where the ranks of a script meet, and from what they go on: said once for each attempt, by its first rank, in the attempt's folder.

meeting.json: `{"v":1,"address":"10.0.0.1","port":41233,"resume_from":"/.../step-40","resume_step":40,"last_step":47}`. The port is one
that the kernel gave; the first rank keeps it bound, without listening, until the script has ended. The kernel gives no port that is
bound to anybody else, so two jobs of a node never get the same; the script itself may bind it, because both say SO_REUSEADDR, as torch's
TCPStore does (socket(7): a bound socket that does not listen is then no hindrance).
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from slurmtrain.atomic import Disk, to_json
from slurmtrain.clock import Clock
from slurmtrain.errors import LaunchError

MEETING_VERSION = 1
FIRST_LOOK_S, LONGEST_LOOK_S = 0.05, 1.0


@dataclass(frozen=True)
class Meeting:
    """`resume_from`: path of the newest checkpoint (None: from the beginning); `last_step`: highest that any attempt has told of."""

    address: str
    port: int
    resume_from: str | None = None
    resume_step: int | None = None
    last_step: int = 0

    def to_json(self) -> bytes:
        return to_json({"v": MEETING_VERSION, **asdict(self)})


def hold_port() -> socket.socket:
    """A socket that keeps a free port; closing it gives the port back. Raises OSError."""
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
    except BaseException:
        held.close()
        raise
    return held


def port_of(held: socket.socket) -> int:
    return int(held.getsockname()[1])


def publish(path: Path, meeting: Meeting, disk: Disk) -> None:
    """Raises LaunchError when another process has said it already: two of them take themselves for the first rank; OSError."""
    if not disk.create_exclusive(path, meeting.to_json()):
        raise LaunchError(f"{path} is there already: two processes take themselves for rank 0 of this attempt")


def read_meeting(path: Path) -> Meeting | None:
    """None while it is not there, or not whole."""
    try:
        raw = json.loads(path.read_bytes())
        told = raw["resume_from"]
        step = raw["resume_step"]
        return Meeting(
            str(raw["address"]),
            int(raw["port"]),
            None if told is None else str(told),
            None if step is None else int(step),
            int(raw["last_step"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def await_meeting(path: Path, clock: Clock, limit_s: float, *, called_away: Callable[[], bool] = lambda: False) -> Meeting | None:
    """Wait for the first rank's word; None when the limit is over, or this process was called away."""
    end, pause = clock.monotonic() + limit_s, FIRST_LOOK_S
    while (found := read_meeting(path)) is None:
        if called_away() or clock.monotonic() >= end:
            return None
        clock.sleep(pause)
        pause = min(pause * 1.5, LONGEST_LOOK_S)
    return found
