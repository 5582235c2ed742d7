"""Whether an agent stays, leaves, or clears its node first. Pure.

| what the agent knows | word |
|---|---|
| the supervisor said that all is over | leave |
| a younger agent of this run has taken the node over, and has lived for SETTLED_S: it came with the supervisor that is now | leave |
| a younger agent has begun a moment ago: what started it may be dying, and it with that | stay |
| Slurm is ending the job (TERM), and the supervisor is gone | leave: Slurm ends what is left, and nothing is to be requeued |
| the input has ended for `orphan_s`: the supervisor, or the launcher between, is gone, and nobody came to replace it | clear |
| no word for `silence_s`: the supervisor hangs, its node is lost, or the network between | clear |
| anything else | stay |

The supervisor says something every PING_S. `orphan_s` is what a batch script takes to start a supervisor that was killed once more,
and its agents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PING_S = 5.0
SILENCE_S = 40.0
ORPHAN_S = 20.0
SETTLED_S = 5.0
Word = Literal["stay", "leave", "clear"]


@dataclass(frozen=True)
class Presence:
    """Monotonic times. `heard_at`: the supervisor's last word, or the agent's start; `ended_at`: when its input ended; `replaced_at`: since
    when a younger agent lives.
    """

    now: float
    heard_at: float
    ended_at: float | None = None
    told: bool = False
    replaced_at: float | None = None
    term: bool = False


def fate(seen: Presence, *, silence_s: float = SILENCE_S, orphan_s: float = ORPHAN_S) -> Word:
    """The table above."""
    silent = seen.now - seen.heard_at >= silence_s
    if seen.told or (seen.term and (seen.ended_at is not None or silent)):
        return "leave"
    if seen.replaced_at is not None:
        return "leave" if seen.now - seen.replaced_at >= SETTLED_S else "stay"
    orphaned = seen.ended_at is not None and seen.now - seen.ended_at >= orphan_s
    return "clear" if orphaned or silent else "stay"
