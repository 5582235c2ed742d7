"""How the nodes of an allocation stand, and which of them an attempt gets. Pure.

| node | stands | used |
|---|---|---|
| Slurm has taken it from the job | - | never |
| lost, or unfit, in this start of the job; its agent is silent | out | never |
| to be avoided (exclude.json) by a person, or since an earlier start | avoided | where there are not enough others, and that is told |
| to be avoided since an attempt of this start (a hang) | out; avoided where nobody could give the job other nodes | as above |
| any other | good | the world's number of them, neighbours together; the rest are spares |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slurmtrain.resilience.agents import Heard
from slurmtrain.resilience.exclude import Exclusion

SILENT_S = 15.0
"""Without a word from a node's agent, after which the node counts as gone."""


@dataclass
class Learnt:
    """What a supervisor has seen in this start of its job.

    `bad`: nodes that are not to be used in it any more, and why; `doubted`: those that the next check asks apart from the others;
    `world`: nodes of the last attempt; `granted`: Slurm has told what the allocation is; `left`: attempt of a killed supervisor, of which
    something may still run (0: none).
    """

    attempts: int = 0
    bad: dict[str, str] = field(default_factory=dict)
    doubted: set[str] = field(default_factory=set)
    world: tuple[str, ...] = ()
    granted: bool = False
    left: int = 0


@dataclass(frozen=True)
class Standing:
    """Nodes of the allocation, in its order; of those that are avoided or out, why."""

    good: tuple[str, ...]
    avoided: Mapping[str, str]
    out: Mapping[str, str]

    @property
    def usable(self) -> tuple[str, ...]:
        return (*self.good, *self.avoided)


def stand(
    nodes: Iterable[str],
    *,
    bad: Mapping[str, str],
    silent: Mapping[str, str],
    excluded: Mapping[str, Exclusion],
    here: Collection[int],
    last_resort: bool,
) -> Standing:
    """The table. `here`: attempts of this start of the job; `last_resort`: nobody could give it other nodes."""
    good: list[str] = []
    avoided: dict[str, str] = {}
    out: dict[str, str] = {}
    for node in nodes:
        if why := bad.get(node) or silent.get(node):
            out[node] = why
        elif (entry := excluded.get(node)) is None:
            good.append(node)
        elif entry.attempt in here and not last_resort:
            out[node] = entry.reason
        else:
            avoided[node] = entry.reason
    return Standing(tuple(good), avoided, out)


def silent_nodes(heard: Mapping[str, Heard], now: float, *, limit_s: float = SILENT_S) -> dict[str, str]:
    """Nodes whose agents have spoken, and do so no more, while others do. `now`: monotonic, of the supervisor."""
    late = {node: now - one.at for node, one in heard.items() if now - one.at > limit_s}
    return {} if len(late) == len(heard) else {node: f"its agent is silent for {age:.0f} s" for node, age in late.items()}


def stepped_in(before: Sequence[str], now: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Nodes that are new in the world, and those that are gone from it."""
    return tuple(n for n in now if n not in before), tuple(n for n in before if n not in now)
