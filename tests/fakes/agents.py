"""The fake of slurmtrain.resilience.agents.Agents: a test tells what nodes report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurmtrain.clock import Clock
from slurmtrain.resilience.agents import Heard
from slurmtrain.resilience.agentwire import NodeReport, Order


class FakeAgents:
    """`report(NodeReport)`: it has come; `orders`: what was said; `started`: nodes of each start; `alive = False`: none run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard: dict[str, Heard] = {}
        self.orders: list[Order] = []
        self.started: list[tuple[str, ...]] = []
        self.alive = True
        self.closed = False

    def report(self, report: NodeReport) -> None:
        self._heard[report.node] = Heard(report, self._clock.monotonic())

    def start(self, nodes: Sequence[str]) -> None:
        self.started.append(tuple(nodes))

    def heard(self) -> Mapping[str, Heard]:
        return dict(self._heard)

    def send(self, order: Order) -> None:
        self.orders.append(order)

    def watched(self) -> bool:
        return self.alive and not self.closed

    def close(self) -> None:
        self.closed = True
