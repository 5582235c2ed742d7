"""Ranks whose own computing takes longer than their peers', step after step: one such rank makes the whole world as slow. Pure.

Compared is `work_s`, what a step took on a rank without waiting for others, with the median of the other ranks of its pipeline stage
(stages differ by design). A rank is told once it is slow in every sample over `recovery.stragglers.steps` steps, and again only after
it was as fast as the others in between. Agents report once in a while, so that of quick steps only some are looked at.

>>> from slurmtrain.config.recovery import StragglerConfig
>>> watch = Stragglers(StragglerConfig(steps=3))
>>> [watch.look({r: Work(step, 2.0 if r == 2 else 1.0, "n1") for r in range(4)}) for step in (1, 2)]
[[], []]
>>> watch.look({r: Work(3, 2.0 if r == 2 else 1.0, "n1") for r in range(4)})
[Straggler(rank=2, node='n1', factor=2.0, step=3, work_s=2.0, peers_s=1.0)]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from slurmtrain.config.recovery import StragglerConfig

EXCESS_S = 0.01
"""A rank that loses less than this in a step is not slow, whatever the factor: of steps of milliseconds the clock's noise is no news."""


@dataclass(frozen=True)
class Work:
    """A rank's last step: its number, and seconds of its own computing in it."""

    step: int
    work_s: float
    node: str


@dataclass(frozen=True)
class Straggler:
    """`factor`: its computing over its peers' (their median), in its newest sample, of `step`."""

    rank: int
    node: str
    factor: float
    step: int
    work_s: float
    peers_s: float

    def to_fields(self) -> dict[str, Any]:
        """Of the event `straggler`, besides the rank."""
        return {"node": self.node, "step": self.step, "factor": self.factor, "work_s": self.work_s, "peers_s": self.peers_s}

    def __str__(self) -> str:
        return (
            f"rank {self.rank} on {self.node} is slow: {self.work_s:.3g} s of computing a step, "
            f"{self.factor:.2f} times its peers' {self.peers_s:.3g} s"
        )


class Stragglers:
    """`stages`: pipeline stage of each rank; empty: one alone."""

    def __init__(self, wish: StragglerConfig, stages: Sequence[int] = ()) -> None:
        self._wish, self._stages = wish, stages
        self._seen: dict[int, int] = {}
        """Step of a rank's newest sample."""
        self._since: dict[int, int] = {}
        """The step since which a rank is slow."""
        self._told: set[int] = set()

    def look(self, works: Mapping[int, Work]) -> list[Straggler]:
        """The ranks that have become stragglers by these samples."""
        found = []
        for rank in sorted(works):
            work, seen = works[rank], self._seen.get(rank, -1)
            if work.step < seen:  # the run has gone back to a checkpoint
                self._since.pop(rank, None)
            if work.work_s > 0 and work.step != seen:
                self._seen[rank] = work.step
                if (one := self._judge(rank, works)) is not None:
                    found.append(one)
        return found

    def _judge(self, rank: int, works: Mapping[int, Work]) -> Straggler | None:
        work, peers = works[rank], self._peers(rank, works)
        if peers is None or work.work_s <= self._wish.factor * peers or work.work_s - peers < EXCESS_S:
            self._since.pop(rank, None)
            self._told.discard(rank)
            return None
        since = self._since.setdefault(rank, work.step)
        if rank in self._told or work.step - since + 1 < self._wish.steps:
            return None
        self._told.add(rank)
        return Straggler(rank, work.node, round(work.work_s / peers, 3), work.step, work.work_s, peers)

    def _peers(self, rank: int, works: Mapping[int, Work]) -> float | None:
        """Median of the other ranks of its stage; None where there are none."""
        others = [one.work_s for r, one in works.items() if r != rank and one.work_s > 0 and self._stage(r) == self._stage(rank)]
        return median(others) if others else None

    def _stage(self, rank: int) -> int:
        return self._stages[rank] if rank < len(self._stages) else 0
