"""What the supervisor and the agents say to each other: one JSON line each, over the agents' own standard input and output.

No port, no shared folder: the launcher that started the agents carries the lines, so that a folder that stands still is seen for what
it is, and a supervisor that is gone is noticed by the end of the input, or by its silence.

Slurm hands over a task's output line by line, up to 1,024 bytes of it at a time: of a longer line the pieces of several nodes would
mix. Ranks are lists without names (8 of them: some 500 bytes a report), and what is longer all the same goes in numbered parts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from slurmtrain.telemetry.heartbeat import PHASES, Phase

WIRE_VERSION = 1
LINE_LIMIT = 1000
"""Bytes of one line of an agent's output, its end included."""
_PART = 800
ProcessState = Literal["runs", "stopped", "gone"]
OrderKind = Literal["ping", "watch", "stacks", "sweep", "end"]
"""ping: the supervisor lives. watch: the attempt whose ranks are to be looked at. stacks: write where each rank of the attempt is. sweep:
end what is left on the node of attempts up to this one. end: leave."""


@dataclass(frozen=True)
class RankSight:
    """A rank as its node's agent sees it. `age_s`: since its last sign of life; `phase_s`: since its phase began.

    `state` of its process: "stopped" is what SIGSTOP or a debugger does; "gone" where it is there no more.
    """

    rank: int
    pid: int
    state: ProcessState
    phase: Phase
    step: int
    age_s: float
    phase_s: float
    entered: int = 0
    work_s: float = 0.0


@dataclass(frozen=True)
class NodeReport:
    """One node's word. `t`: its own monotonic clock; `number` counts its reports; `stall_s`: for how long the shared folder has not
    answered it; `done`: orders carried out since the last report, by number, with what came of each in one line.
    """

    node: str
    number: int
    attempt: int
    t: float
    ranks: tuple[RankSight, ...] = ()
    stall_s: float = 0.0
    done: Mapping[int, str] = field(default_factory=dict)

    def to_line(self) -> str:
        said = {one.name: getattr(self, one.name) for one in fields(self)} | {"ranks": [_values(rank) for rank in self.ranks]}
        return json.dumps({"v": WIRE_VERSION, **said}, separators=(",", ":"), default=dict) + "\n"

    @classmethod
    def from_line(cls, line: str) -> NodeReport:
        """Raises ValueError for what is no report (a line that a module of the site printed)."""
        raw = _object(line, cls)
        try:
            ranks = tuple(RankSight(*one[: len(fields(RankSight))]) for one in raw.pop("ranks", ()))
            done = {int(number): str(what) for number, what in raw.pop("done", {}).items()}
            report = cls(**raw, ranks=ranks, done=done)
        except (TypeError, AttributeError) as error:
            raise ValueError(f"not a report: {line[:80]!r}") from error
        if any(one.phase not in PHASES or one.state not in get_args(ProcessState) for one in ranks):
            raise ValueError(f"not a report: {line[:80]!r}")
        return report


@dataclass(frozen=True)
class Order:
    """What the supervisor wants of all agents, or of `nodes` alone; `number` counts orders.

    `ranks`: of `watch`, each node's world ranks.
    """

    kind: OrderKind
    number: int
    attempt: int = 0
    nodes: tuple[str, ...] = ()
    ranks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def to_line(self) -> str:
        return json.dumps({"v": WIRE_VERSION, **asdict(self)}, separators=(",", ":")) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Order:
        """Raises ValueError for what is no order."""
        raw = _object(line, cls)
        try:
            ranks = {node: tuple(map(int, one)) for node, one in raw.pop("ranks", {}).items()}
            order = cls(**{**raw, "nodes": tuple(raw.get("nodes", ()))}, ranks=ranks)
        except (TypeError, AttributeError) as error:
            raise ValueError(f"not an order: {line[:80]!r}") from error
        if order.kind not in get_args(OrderKind):
            raise ValueError(f"not an order: {line[:80]!r}")
        return order

    def concerns(self, node: str) -> bool:
        return not self.nodes or node in self.nodes


def parts_of(report: NodeReport) -> list[str]:
    """The lines that carry a report: one, or numbered parts `+NODE NUMBER PART/PARTS TEXT`."""
    line = report.to_line()
    if len(line) <= LINE_LIMIT:
        return [line]
    pieces = [line[at : at + _PART] for at in range(0, len(line) - 1, _PART)]
    return [f"+{report.node} {report.number} {i}/{len(pieces)} {piece.rstrip()}\n" for i, piece in enumerate(pieces, 1)]


class Joiner:
    """Puts the parts of reports together again; of each node the newest report alone is kept, so that what got lost costs nothing."""

    def __init__(self) -> None:
        self._parts: dict[str, tuple[str, dict[str, str]]] = {}

    def take(self, line: str) -> str | None:
        """A whole line, or None while parts are missing."""
        head = line[1:].split(" ", 3) if line.startswith("+") else []
        if len(head) != 4:
            return line
        node, number, place, text = head
        kept = self._parts.get(node)
        parts = kept[1] if kept is not None and kept[0] == number else {}
        parts[place.partition("/")[0]] = text.rstrip("\n")
        self._parts[node] = (number, parts)
        count = place.partition("/")[2]
        if not count.isdigit() or len(parts) < int(count):
            return None
        del self._parts[node]
        return "".join(parts.get(str(i), "") for i in range(1, int(count) + 1)) + "\n"


def _values(rank: RankSight) -> list[object]:
    """In the order of the fields; a newer release may append to them. Times to the millisecond."""
    values = (getattr(rank, one.name) for one in fields(rank))
    return [round(value, 3) if isinstance(value, float) else value for value in values]


def _object(line: str, kind: type) -> dict[str, Any]:
    try:
        raw = json.loads(line)
    except ValueError:
        raw = None
    if not isinstance(raw, dict) or "v" not in raw:
        raise ValueError(f"not {'an order' if kind is Order else 'a report'}: {line[:80]!r}")
    return _known(kind, raw)


def _known(kind: type, raw: Mapping[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in raw.items() if name in names}
