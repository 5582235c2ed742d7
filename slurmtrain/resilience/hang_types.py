"""What was found out about a hang: the same words for who finds it, who judges it, and who reads of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hang:
    """No progress for too long. `rank`, `node`: the suspect (None, empty: nobody stands out); `phase`: what it did; `words`: a line."""

    rank: int | None
    node: str
    phase: str
    seconds: float
    words: str
