"""What a full preflight knows so far: who takes part, what was measured, what was found; and the order that is given to probes.

| what happens to a member | what follows |
|---|---|
| it answers | its figures are kept |
| it fails, or says that its group did | the order is given again (`trials`) |
| it does not answer in time, its process is gone, it does not come back | its node is out at once: it costs one time-out |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar

from slurmtrain.clock import Clock
from slurmtrain.preflight.baseline import Baseline
from slurmtrain.preflight.finding import OUT, Finding, Grade, tolerated
from slurmtrain.preflight.probing import Member, Order, Probes, Reply
from slurmtrain.preflight.rates import Kind, Rule, rule_of
from slurmtrain.preflight.request import Request

MOST_S = 60.0
"""How long one order may take; less where preflight.full_s is short: an eighth of it."""
EACH = frozenset({"matmul", "storage", "transport"})
ALONE = frozenset({"matmul", "pair"})
"""Orders that are given one after another where all nodes share one machine (rates.py)."""
_LOST = ("no answer in ", "its process is gone", "it starts anew", "it has not reported")
_HUNG = "look at its console and its kernel's log; drain it if it hangs again"

K = TypeVar("K")


class CalledAwayError(Exception):
    """Somebody wants this process for something else: nothing is concluded."""


class OutOfTimeError(Exception):
    """preflight.full_s is over."""


@dataclass(frozen=True)
class FullResult:
    """What was measured and found. `figures`: by node, the median of what it was part of; `untested`: pairs that there was no time for;
    `samples`: healthy values by kind, for a baseline; `notes`: what else a person should know; `interrupted`: nothing is concluded.
    """

    findings: tuple[Finding, ...] = ()
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    untested: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0
    interrupted: bool = False
    samples: Mapping[Kind, tuple[float, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def bad(self) -> dict[str, Finding]:
        """Nodes that are to be left out, each with the first finding that says so."""
        found: dict[str, Finding] = {}
        for one in self.findings:
            if one.grade in OUT:
                found.setdefault(one.node, one)
        return found


class Ledger:
    """See above. `called`: whether somebody wants this process for something else; `record`: groups of all sizes are wanted."""

    def __init__(  # noqa: PLR0917 as `measure`
        self,
        probes: Probes,
        nodes: Sequence[str],
        request: Request,
        baseline: Baseline,
        clock: Clock,
        say: Callable[[str], None],
        *,
        called: Callable[[], bool],
        record: bool,
    ) -> None:
        self.probes, self.request, self.baseline, self.clock, self.record = probes, request, baseline, clock, record
        self._nodes, self._say, self._called = tuple(nodes), say, called
        self.tasks = request.probes_per_node
        self.shared = request.site.fabric.kind == "loopback" and not request.on_gpus
        self.slowest_s = 0.0
        self.findings: list[Finding] = []
        self.devices: dict[Member, str] = {}
        self.untested: list[tuple[str, str]] = []
        self._figures: dict[str, dict[str, list[float]]] = {node: {} for node in nodes}
        self._samples: dict[Kind, list[float]] = {}
        self._notes: list[str] = []
        self._out: set[str] = set()
        self._began = clock.monotonic()

    # -- who takes part

    @property
    def fit(self) -> tuple[str, ...]:
        return tuple(node for node in self._nodes if node not in self._out)

    def members(self) -> list[Member]:
        """All of the nodes that are fit."""
        return [(node, local) for node in self.fit for local in range(self.tasks)]

    def device(self, members: Iterable[Member]) -> str:
        """Model of these members' devices; of several models all names."""
        return " + ".join(sorted({self.devices.get(member, "") for member in members}))

    def item(self, member: Member) -> str:
        """Of a member, for a finding."""
        return f"GPU {member[1]}" if self.request.on_gpus else ""

    # -- what is known

    def blame(self, node: str, check: str, said: str, remedy: str, *, grade: Grade = "fail", item: str = "", peer: str = "") -> None:
        """Keep a finding. What the site tolerates keeps no node out."""
        one = tolerated(Finding(node, check, grade, said, remedy, item, peer), self.request.site.preflight.tolerate)
        if one not in self.findings:
            self.findings.append(one)
        if one.grade in OUT:
            self._out.add(node)

    def note(self, words: str) -> None:
        if words and words not in self._notes:
            self._notes.append(words)
            self._say(words)

    def keep(self, kind: Kind, nodes: Iterable[str], value: float, *, healthy: bool) -> None:
        """A measured rate of these nodes."""
        for node in nodes:
            self._figures[node].setdefault(kind.metric, []).append(value)
        if healthy:
            self._samples.setdefault(kind, []).append(value)

    def figure(self, node: str, name: str, value: float) -> None:
        self._figures[node].setdefault(name, []).append(value)

    def healthy(self, kind: Kind) -> float | None:
        """What the baseline says, where one counts."""
        return None if self.shared else self.baseline.healthy(kind)

    def rule(self, kind: Kind) -> Rule:
        return rule_of(kind.metric, on_gpus=self.request.on_gpus)

    def result(self, *, interrupted: bool = False) -> FullResult:
        figures = {node: {name: round(median(values), 4) for name, values in own.items()} for node, own in self._figures.items() if own}
        samples = {kind: tuple(values) for kind, values in self._samples.items()}
        found, seconds = () if interrupted else tuple(self.findings), self.clock.monotonic() - self._began
        return FullResult(found, figures, tuple(self.untested), seconds, interrupted, samples, tuple(self._notes))

    # -- time

    @property
    def left_s(self) -> float:
        return self._began + self.request.site.preflight.full_s - self.clock.monotonic()

    @property
    def order_s(self) -> float:
        """How long an order may take now."""
        return max(1.0, min(MOST_S, self.request.site.preflight.full_s / 8, self.left_s))

    def check_time(self) -> None:
        """Raises CalledAwayError, OutOfTimeError."""
        if self._called():
            raise CalledAwayError
        if self.left_s <= 0:
            raise OutOfTimeError

    # -- orders

    def ask(
        self, groups: Mapping[K, tuple[Member, ...]], order: Order, check: str, *, limit_s: float | None = None
    ) -> dict[K, dict[Member, Reply]]:
        """Give an order to all groups at the same time (an order of EACH: to their only members); whoever is lost by it is out.

        `slowest_s` is then how long it took. Raises CalledAwayError, OutOfTimeError.
        """
        self.check_time()
        self.slowest_s = 0.0
        replies: dict[K, dict[Member, Reply]] = {}
        batches = [{key: group} for key, group in groups.items()] if self.shared and order.do in ALONE else [dict(groups)]
        for batch in batches:
            if batch:
                limit = self.order_s if limit_s is None else min(limit_s, max(1.0, self.left_s))
                began = self.clock.monotonic()
                replies |= self._give(batch, order, limit)
                self.slowest_s = max(self.slowest_s, self.clock.monotonic() - began)
            if self._called():
                raise CalledAwayError
        for own in replies.values():
            self._learn(own, check)
        return replies

    def _give(self, groups: Mapping[K, tuple[Member, ...]], order: Order, limit_s: float) -> dict[K, dict[Member, Reply]]:
        if order.do in EACH:
            answers = self.probes.each([group[0] for group in groups.values()], order, limit_s)
            return {key: {group[0]: answers[group[0]]} for key, group in groups.items()}
        return dict(zip(groups, self.probes.groups(list(groups.values()), order, limit_s), strict=True))

    def _learn(self, replies: Mapping[Member, Reply], check: str) -> None:
        for member, reply in replies.items():
            if not reply.ok and reply.said.startswith(_LOST):
                self.blame(member[0], check, reply.said, _HUNG, item=self.item(member))
            elif device := reply.words.get("device"):
                self.devices[member] = device
