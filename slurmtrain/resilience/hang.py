"""Whether the world of an attempt stands still, and which rank or node is to blame: from what the nodes' agents tell. Pure.

A rank stands still since its last sign of life (a new phase, a collective entered, a batch evaluated). How long it may, by phase:

| phase | limit (`recovery.hang`) |
|---|---|
| init | the site's `start_timeout_s` |
| load, save, eval, data | `load_s`, `save_s`, `eval_s`, `data_s` |
| step, wait: until the attempt's first step is done | `first_step_s` |
| step, wait | `step_s`, or `step_factor` times the median of the recent steps where that is longer |
| any, while the shared folder does not answer its node | does not count, up to `storage_s`; begins anew when the folder is back |
| its process is stopped, or gone | as of a step that is not the first: nothing excuses it |
| end | never: the others' records set that limit |

The world hangs when every rank that is seen stands still beyond its own limit: one that saves, loads or waits for data within its limit
excuses those that wait for it. A rank whose process is stopped or gone excuses nobody, and is enough by itself. A node whose agent is
silent excuses nobody, and is not enough: agents end, too, while ranks go on.

The suspect is the first of these; a node is named where all that look alike are on it:

| rank or node | words |
|---|---|
| its process is stopped (SIGSTOP, a debugger) | its process is stopped |
| its process is gone | its process is gone |
| its agent is silent, while its peers stand still | node n2 does not answer |
| it never came so far as to beat | n of m ranks have not begun |
| it is the furthest behind: in init while others load, in load while others train, fewest steps done | behind the others |
| it has entered fewer collectives than its peers (of the same pipeline stage) | fewer collectives than its peers |
| it is not in the step's reduction, where the others wait | the others wait for it |
| none of these | no rank stands out |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from slurmtrain.config.recovery import HangConfig
from slurmtrain.resilience.agents import Heard
from slurmtrain.resilience.agentwire import RankSight
from slurmtrain.resilience.hang_types import Hang
from slurmtrain.telemetry.heartbeat import Phase
from slurmtrain.units import counted

SILENT_S = 15.0
"""Without a word from a node's agent, after which what it said before counts no more."""


@dataclass(frozen=True)
class Scene:
    """What is known of an attempt. `now` and `Heard.at`: of the supervisor's monotonic clock.

    `nodes`: in the order of the world; `start_s`: the site's limit for a start; `median_s`: of the recent steps, 0: none is known;
    `stalled`: when the shared folder was last seen to stand still, by node; `stages`: pipeline stage of each rank, empty: one alone.
    """

    now: float
    attempt: int
    nodes: tuple[str, ...]
    tasks_per_node: int
    heard: Mapping[str, Heard]
    limits: HangConfig
    start_s: float
    median_s: float = 0.0
    first_done: bool = False
    stalled: Mapping[str, float] = field(default_factory=dict)
    stages: Sequence[int] = ()

    def ranks_of(self, node: str) -> range:
        """World ranks of a node."""
        first = self.nodes.index(node) * self.tasks_per_node
        return range(first, first + self.tasks_per_node)

    def step_limit_s(self) -> float:
        """Of a step that is not the first; 0: none."""
        limits = self.limits
        return max(limits.step_s, limits.step_factor * self.median_s) if limits.step_s else 0.0

    def limit_s(self, phase: Phase) -> float:
        """0: none."""
        if phase in {"step", "wait"}:
            return self.step_limit_s() if self.first_done else self.limits.first_step_s
        return {"init": self.start_s, "end": 0.0}.get(phase) or float(getattr(self.limits, f"{phase}_s", 0.0))


@dataclass(frozen=True)
class Seen:
    """A rank of a node whose agent speaks. `still_s`: since its last sign of life; `limit_s`: 0: none."""

    node: str
    sight: RankSight
    still_s: float
    limit_s: float

    @property
    def over(self) -> bool:
        return 0 < self.limit_s <= self.still_s

    @property
    def runs(self) -> bool:
        return self.sight.state == "runs"


def find_hang(scene: Scene) -> Hang | None:
    """The tables above; None while nobody stands still for too long."""
    seen = [one for one in _seen(scene) if one.sight.phase != "end"]
    live = [one for one in seen if one.runs]
    struck = [one for one in seen if not one.runs and one.over]
    if not struck and (not live or not all(one.over for one in live)):
        return None
    ranks, node, why = _suspects(scene, seen)
    return _told(scene, ranks, node, why, seen)


def _seen(scene: Scene) -> Iterator[Seen]:
    for node in scene.nodes:
        heard = scene.heard.get(node)
        if heard is None or heard.report.attempt != scene.attempt or scene.now - heard.at > SILENT_S:
            continue
        for sight in heard.report.ranks:
            still = sight.age_s + scene.now - heard.at
            if sight.state == "runs":
                yield Seen(node, sight, _counted(scene, node, heard.report.stall_s, still), scene.limit_s(sight.phase))
            else:
                yield Seen(node, sight, still, scene.step_limit_s())


def _counted(scene: Scene, node: str, stall_s: float, still_s: float) -> float:
    """What counts of a stand: not the time in which the shared folder did not answer."""
    storage_s = scene.limits.storage_s
    if stall_s > 0:
        return 0.0 if not storage_s or stall_s < storage_s else still_s
    return min(still_s, scene.now - scene.stalled[node]) if node in scene.stalled else still_s


def silent_nodes(scene: Scene) -> list[str]:
    """Nodes of the world whose agents have spoken, and do so no more, while others do."""
    silent = [node for node in scene.nodes if node in scene.heard and scene.now - scene.heard[node].at > SILENT_S]
    return silent if len(silent) < len(scene.nodes) else []


_Suspects = tuple[list[Seen], str, str]
"""Ranks, the first of them to be named; a node where no rank can be; why."""


def _suspects(scene: Scene, seen: list[Seen]) -> _Suspects:
    for state, why in (("stopped", "its process is stopped"), ("gone", "its process is gone")):
        if found := [one for one in seen if one.sight.state == state]:
            return found, "", why
    if silent := silent_nodes(scene):
        ages = max(scene.now - scene.heard[node].at for node in silent)
        more = f" (nor do {counted(len(silent) - 1, 'other node')})" if len(silent) > 1 else ""
        return [], silent[0], f"does not answer for {ages:.0f} s{more}, and its peers stand still"
    for node in _absent(scene, seen):
        begun = sum(one.node == node for one in seen)
        return [], node, f"{scene.tasks_per_node - begun} of its {counted(scene.tasks_per_node, 'rank')} have not begun"
    for look, why in (
        (_behind, "it is behind the others"),
        (lambda some: _fewest(some, scene.stages), "it has entered fewer collectives than its peers"),
        (_not_waiting, "the others wait for it"),
    ):
        found = look(seen)
        if found and len(found) < len(seen):
            return found, "", why
    return [], "", "no rank stands out"


def _absent(scene: Scene, seen: list[Seen]) -> list[str]:
    """Nodes that have fewer ranks than they should, while some rank waits for the world to come up."""
    if not any(one.sight.phase == "init" for one in seen):
        return []
    speaking = [node for node in scene.nodes if node in scene.heard and scene.heard[node].report.attempt == scene.attempt]
    return [node for node in speaking if sum(one.node == node for one in seen) < scene.tasks_per_node]


def _behind(seen: list[Seen]) -> list[Seen]:
    return _lowest(seen, lambda one: ({"init": 0, "load": 1}.get(one.sight.phase, 2), one.sight.step))


def _fewest(seen: list[Seen], stages: Sequence[int]) -> list[Seen]:
    """Whose count is the furthest below that of the peer in its stage that has entered most."""
    most: dict[int, int] = {}
    for one in seen:
        stage = _stage(one, stages)
        most[stage] = max(most.get(stage, 0), one.sight.entered)
    short = [(most[_stage(one, stages)] - one.sight.entered, one) for one in seen]
    worst = max((lack for lack, _ in short), default=0)
    return [one for lack, one in short if lack == worst] if worst else []


def _stage(one: Seen, stages: Sequence[int]) -> int:
    return stages[one.sight.rank] if one.sight.rank < len(stages) else 0


def _not_waiting(seen: list[Seen]) -> list[Seen]:
    return [one for one in seen if one.sight.phase != "wait"] if any(one.sight.phase == "wait" for one in seen) else []


def _lowest(seen: list[Seen], key: Callable[[Seen], tuple[int, int]]) -> list[Seen]:
    least = min(map(key, seen), default=None)
    return [one for one in seen if key(one) == least]


def _told(scene: Scene, ranks: list[Seen], node: str, why: str, seen: Iterable[Seen]) -> Hang:
    """The words. `seconds`: how long the suspect stands still; without one, the rank that does so longest."""
    longest = max(ranks or seen, key=lambda one: one.still_s)
    first = min(ranks, key=lambda one: one.sight.rank) if ranks else None
    shown = first or longest
    limit = f"limit {shown.limit_s:.0f} s" if shown.limit_s else "no limit of its own"
    stand = f"{shown.still_s:.0f} s in {shown.sight.phase} after step {shown.sight.step} ({limit})"
    if first is None:
        who = f"node {node}" if node else "the world"
        return Hang(None, node, shown.sight.phase, shown.still_s, f"{who} hangs: {why}; {stand}")
    known = first.sight.rank in scene.ranks_of(first.node)
    who = f"rank {first.sight.rank}" if known else f"process {first.sight.pid}"
    more = f" (and {counted(len(ranks) - 1, 'more rank')})" if len(ranks) > 1 else ""
    words = f"{who} on {first.node}{more} hangs: {why}; {stand}"
    alike = first.node if len({one.node for one in ranks}) == 1 else ""
    return Hang(first.sight.rank if known else None, alike, first.sight.phase, first.still_s, words)
