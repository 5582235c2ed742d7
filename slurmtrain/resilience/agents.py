"""The agents as the supervisor has them: a Protocol; the real ones are started by `agent_steps.py`, the fake is tests/fakes/agents.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from slurmtrain.resilience.agentwire import NodeReport, Order


@dataclass(frozen=True)
class Heard:
    """A node's newest report, and when it came, by the supervisor's monotonic clock."""

    report: NodeReport
    at: float


class Agents(Protocol):
    """One agent per node of the allocation, alive across attempts. No method waits for a node, and none raises for one that is gone."""

    def start(self, nodes: Sequence[str]) -> None:
        """Start, or start again, what should run on these nodes. Raises LaunchError where the launcher is not there."""

    def heard(self) -> Mapping[str, Heard]:
        """The newest report by node; nodes that never spoke are left out."""

    def send(self, order: Order) -> None:
        """Say it to all that listen."""

    def watched(self) -> bool:
        """Whether agents run at all; a supervisor without them goes on, unwatched, and says so."""

    def close(self) -> None:
        """End them all, wherever they are."""


class NoAgents:
    """Where none are wanted."""

    def start(self, nodes: Sequence[str]) -> None:
        pass

    def heard(self) -> Mapping[str, Heard]:
        return {}

    def send(self, order: Order) -> None:
        pass

    def watched(self) -> bool:
        return False

    def close(self) -> None:
        pass
