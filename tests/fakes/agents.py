"""The fake of slurmtrain.resilience.agents.Agents: a test tells what nodes report, or lets them answer by themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from slurmtrain.clock import Clock
from slurmtrain.resilience.agents import Heard
from slurmtrain.resilience.agentwire import NodeReport, Order


class FakeAgents:
    """`report(NodeReport)`: it has come; `orders`: what was said; `started`: nodes of each start; `alive = False`: none run.

    `lively`: each node that is started reports, is heard anew at each look, takes up the attempt that it is to watch, and carries its
    orders out; `die(node)` silences one.
    """

    def __init__(self, clock: Clock, *, lively: bool = False) -> None:
        self._clock, self._lively = clock, lively
        self._heard: dict[str, Heard] = {}
        self._dead: set[str] = set()
        self._nodes: tuple[str, ...] = ()
        self.orders: list[Order] = []
        self.started: list[tuple[str, ...]] = []
        self.alive = True
        self.closed = False

    def report(self, report: NodeReport) -> None:
        self._heard[report.node] = Heard(report, self._clock.monotonic())

    def die(self, node: str) -> None:
        self._dead.add(node)

    def start(self, nodes: Sequence[str]) -> None:
        self._nodes = tuple(nodes)
        self.started.append(self._nodes)
        for node in nodes:
            if self._lively and node not in self._heard:
                self.report(NodeReport(node, 1, 0, self._clock.monotonic()))

    def heard(self) -> Mapping[str, Heard]:
        for node, last in list(self._heard.items()):
            if self._lively and node not in self._dead and not self.closed:
                self.report(replace(last.report, number=last.report.number + 1, t=self._clock.monotonic()))
        return {node: heard for node, heard in self._heard.items() if not self._lively or node in self._nodes}

    def send(self, order: Order) -> None:
        self.orders.append(order)
        for node, last in list(self._heard.items()):
            if not self._lively or node in self._dead or self.closed or not order.concerns(node):
                continue
            attempt = order.attempt if order.kind == "watch" else last.report.attempt
            done = {**last.report.done, order.number: "nothing was left"} if order.kind in {"sweep", "stacks"} else last.report.done
            self.report(replace(last.report, attempt=attempt, done=done))

    def watched(self) -> bool:
        return self.alive and not self.closed

    def close(self) -> None:
        self.closed = True
