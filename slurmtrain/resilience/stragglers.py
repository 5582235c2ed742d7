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

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
        found, stages = [], self._by_stage(works)
        for rank in sorted(works):
            work, seen = works[rank], self._seen.get(rank, -1)
            if work.step < seen:  # the run has gone back to a checkpoint
                self._since.pop(rank, None)
            if work.work_s > 0 and work.step != seen:
                self._seen[rank] = work.step
                if (one := self._judge(rank, work, median_without(stages[self._stage(rank)], work.work_s))) is not None:
                    found.append(one)
        return found

    def _judge(self, rank: int, work: Work, peers: float | None) -> Straggler | None:
        """`peers`: the median of the others of its stage; None: it is alone there."""
        if peers is None or work.work_s <= self._wish.factor * peers or work.work_s - peers < EXCESS_S:
            self._since.pop(rank, None)
            self._told.discard(rank)
            return None
        since = self._since.setdefault(rank, work.step)
        if rank in self._told or work.step - since + 1 < self._wish.steps:
            return None
        self._told.add(rank)
        return Straggler(rank, work.node, round(work.work_s / peers, 3), work.step, work.work_s, peers)

    def _by_stage(self, works: Mapping[int, Work]) -> dict[int, list[float]]:
        """What the ranks of each stage took, ascending; of thousands of ranks it is sorted once."""
        stages: dict[int, list[float]] = {}
        for rank, work in works.items():
            if work.work_s > 0:
                stages.setdefault(self._stage(rank), []).append(work.work_s)
        return {stage: sorted(taken) for stage, taken in stages.items()}

    def _stage(self, rank: int) -> int:
        return self._stages[rank] if rank < len(self._stages) else 0


def median_without(ordered: Sequence[float], one: float) -> float | None:
    """The median of ascending numbers without one of them; None where it is alone.

    >>> median_without([1.0, 2.0, 4.0, 9.0], 9.0), median_without([1.0, 2.0, 4.0], 1.0), median_without([3.0], 3.0)
    (2.0, 3.0, None)
    """
    count, gap = len(ordered) - 1, bisect_left(ordered, one)
    if not count:
        return None
    low, high = ((k if k < gap else k + 1) for k in ((count - 1) // 2, count // 2))
    return (ordered[low] + ordered[high]) / 2
