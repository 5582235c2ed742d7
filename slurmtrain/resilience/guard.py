"""Looks after one attempt by what the nodes' agents tell: hangs and slow ranks; has the evidence of a hang collected."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace

from slurmtrain.clock import Clock
from slurmtrain.config.plan import Plan
from slurmtrain.config.recovery import RecoveryConfig
from slurmtrain.fabric.placement import coordinates
from slurmtrain.resilience.agents import Agents, Heard
from slurmtrain.resilience.agentwire import Order
from slurmtrain.resilience.composition import Composition
from slurmtrain.resilience.exclude import read_excluded
from slurmtrain.resilience.flight import Group, Missing, first_missing, read_flight
from slurmtrain.resilience.hang import SILENT_S, Scene, find_hang
from slurmtrain.resilience.hang_types import Hang
from slurmtrain.resilience.records import AttemptRecord
from slurmtrain.resilience.stragglers import Straggler, Stragglers, Work
from slurmtrain.rundir import AttemptDir
from slurmtrain.telemetry.events import Event

READ_S = 5.0
"""How long flight records are read; of a large world not all are."""


@dataclass(frozen=True)
class Charge:
    """An attempt that is looked after. `stages`: pipeline stage of each rank; `avoided`: nodes that are used for want of others."""

    attempt: AttemptDir
    nodes: tuple[str, ...]
    tasks_per_node: int
    recovery: RecoveryConfig
    start_s: float
    collective_s: float
    stages: Sequence[int] = ()
    avoided: AbstractSet[str] = frozenset()


def stages_of(plan: Plan) -> tuple[int, ...]:
    """Pipeline index of each rank; empty where there is no pipeline."""
    return tuple(coordinates(plan, rank)["pp"] for rank in range(plan.world)) if plan.pp > 1 else ()


class Guard:
    """`numbers`: of orders; `tell`: of a rank that has become slow."""

    def __init__(self, charge: Charge, agents: Agents, numbers: Iterator[int], clock: Clock, tell: Callable[[Straggler], None]) -> None:
        self._charge, self._agents, self._numbers, self._clock, self._tell = charge, agents, numbers, clock, tell
        self._stragglers = Stragglers(charge.recovery.stragglers, charge.stages)
        self._stalled: dict[str, float] = {}
        self._order: Order | None = None
        self.asked_at: float | None = None
        """When the evidence of a hang was asked for."""
        self.hang: Hang | None = None
        self.slow: Straggler | None = None
        """A rank whose node is to be left because of it."""
        self.seen = False
        """Some rank beats."""
        self.begun = False
        """Some rank is past its init."""

    def notes(self) -> list[str]:
        """What a person should know beforehand."""
        hang, limit = self._charge.recovery.hang, self._charge.collective_s
        if self._agents.watched() and hang.step_s and limit <= hang.step_s:
            both = f"collective_timeout_s = {limit:g} of the site is not above recovery.hang.step_s = {hang.step_s:g}"
            return [f"{both}: torch ends a step that hangs before it is looked at"]
        return []

    def look(self, *, median_s: float, first_done: bool) -> None:
        """What the nodes tell now. `median_s`: of the recent steps; `first_done`: this attempt has made a step."""
        now, heard = self._clock.monotonic(), self._agents.heard()
        fresh = {node: one for node, one in heard.items() if self._is_of_now(node, one, now)}
        self._stalled |= dict.fromkeys((node for node, one in fresh.items() if one.report.stall_s > 0), now)
        phases = {sight.phase for one in fresh.values() for sight in one.report.ranks}
        self.seen, self.begun = self.seen or bool(phases), self.begun or bool(phases - {"init"})
        self.hang = find_hang(self._scene(now, heard, median_s, first_done=first_done))
        if self.hang is None:
            self._order = self.asked_at = None
        self._judge(fresh)

    def _is_of_now(self, node: str, one: Heard, now: float) -> bool:
        return node in self._charge.nodes and one.report.attempt == self._charge.attempt.number and now - one.at <= SILENT_S

    def _scene(self, now: float, heard: Mapping[str, Heard], median_s: float, *, first_done: bool) -> Scene:
        charge = self._charge
        return Scene(
            now=now,
            attempt=charge.attempt.number,
            nodes=charge.nodes,
            tasks_per_node=charge.tasks_per_node,
            heard=heard,
            limits=charge.recovery.hang,
            start_s=charge.start_s,
            median_s=median_s,
            first_done=first_done,
            stalled=self._stalled,
            stages=charge.stages,
        )

    def _judge(self, fresh: Mapping[str, Heard]) -> None:
        works = {
            sight.rank: Work(sight.step, sight.work_s, node)
            for node, one in fresh.items()
            for sight in one.report.ranks
            if sight.phase in {"step", "wait", "data"}
        }
        for one in self._stragglers.look(works):
            self._tell(one)
            if self._charge.recovery.stragglers.exclude and one.node not in self._charge.avoided:
                self.slow = self.slow or one

    # --- evidence

    def collect(self) -> None:
        """Ask all nodes of the attempt where their ranks are."""
        self.asked_at = self._clock.monotonic()
        self._order = Order("stacks", next(self._numbers), self._charge.attempt.number, self._charge.nodes)
        self._agents.send(self._order)

    @property
    def collected(self) -> bool:
        """Whether every node that speaks has answered."""
        now, heard = self._clock.monotonic(), self._agents.heard()
        return all(self._answer(one) is not None for node, one in heard.items() if self._is_of_now(node, one, now))

    def evidence(self) -> list[str]:
        """Lines for the log: what the nodes answered, and what torch's flight recorders say together."""
        heard = self._agents.heard()
        answers = [(node, self._answer(heard[node])) for node in self._charge.nodes if node in heard]
        lines = [f"{node}: {said}" for node, said in answers if said]
        if not any(one.report.stall_s > 0 for one in heard.values()):
            missing = first_missing(self._records())
            if missing is not None:
                lines.append(f"flight recorder: {missing}")
                self.hang = blamed_by(missing, self.hang, self._charge)
        return lines

    def _answer(self, one: Heard) -> str | None:
        return one.report.done.get(self._order.number) if self._order is not None else None

    def _records(self) -> dict[int, dict[str, Group]]:
        records, limit = {}, self._clock.monotonic() + READ_S
        for rank in range(len(self._charge.nodes) * self._charge.tasks_per_node):
            if self._clock.monotonic() > limit:
                break
            if (record := read_flight(self._charge.attempt.flight_record(rank))) is not None:
                records[rank] = record
        return records


def blamed_by(missing: Missing, hang: Hang | None, charge: Charge) -> Hang | None:
    """The hang with what the flight recorders add: the suspect, where nobody stood out and one node alone was absent."""
    if hang is None:
        return None
    told = replace(hang, words=f"{hang.words}; {missing}")
    nodes = {charge.nodes[rank // charge.tasks_per_node] for rank in missing.absent if rank // charge.tasks_per_node < len(charge.nodes)}
    if hang.rank is not None or hang.node or len(nodes) != 1:
        return told
    return replace(told, rank=missing.absent[0], node=nodes.pop())


def make_guard(c: Composition, record: AttemptRecord, plan: Plan) -> Guard:
    """The guard of an attempt on its nodes; `plan`: its layout."""
    times = c.setup.site.timeouts
    charge = Charge(
        attempt=c.run.attempt(record.attempt),
        nodes=record.nodes,
        tasks_per_node=record.tasks_per_node,
        recovery=c.setup.job.recovery,
        start_s=float(times.start_timeout_s),
        collective_s=float(times.collective_timeout_s) if c.setup.job.entry is None else float("inf"),  # a script has its own
        stages=stages_of(plan),
        avoided=read_excluded(c.run.exclude_json, c.clock.time()).keys(),
    )

    def tell(slow: Straggler) -> None:
        c.say(str(slow))
        event = Event("straggler", c.clock.time(), record.attempt, slow.rank, slow.to_fields())
        with suppress(OSError):
            c.disk.append(c.run.supervisor_events, event.to_line().encode())

    return Guard(charge, c.agents, c.numbers, c.clock, tell)


def hang_of(slow: Straggler, seconds: float = 0.0) -> Hang:
    """A slow rank, in the words that the judgement of an attempt understands."""
    return Hang(slow.rank, slow.node, "step", seconds, str(slow))
