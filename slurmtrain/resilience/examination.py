"""A silent corruption under examination: examination.json, and how one run of the suspect steps leads to the next. Pure but for the file.

Replicas agreed at step `from_step` and differed at `to_step`. The steps between are run again, and compared after each:

| stage | what is seen | then |
|---|---|---|
| none, or closed | replicas differ | repeat: the same steps on the same nodes in the same order |
| repeat | equal up to `to_step` | closed, transient: it came once |
| repeat | other ranks differ | closed, undecided: neither a rank nor a node keeps to it |
| repeat | a suspect rank differs again, and the world has one node and no spare | closed, undecided: nothing can be exchanged |
| repeat | a suspect rank differs again | exchange: a suspect's node changes places with another |
| exchange | the moved node's ranks differ, the rank that it had before does not | closed, persistent: the node is avoided from now on |
| exchange | equal up to `to_step` | closed, persistent, too: twice with this node in its place, and not without |
| exchange | the rank that it had before differs again, on another node | closed, software; undecided where two are suspects of each other |
| exchange | anything else; or the node could not be moved | closed, undecided |

Two replicas that differ are suspects of each other; of three and more the odd one is outvoted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from slurmtrain.atomic import to_json

EXAMINATION_VERSION = 1
Stage = Literal["repeat", "exchange", "closed"]
Finding = Literal["", "transient", "persistent", "software", "undecided"]
"""transient: it came once. persistent: it goes with a node. software: it stays with a rank. undecided: cannot be told."""


@dataclass(frozen=True)
class Suspect:
    """A rank that differs, its node and its device: index on the node, and NVML's uuid where there is one."""

    rank: int
    node: str
    gpu: int
    uuid: str = ""

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.node}, GPU {self.gpu}{f' ({self.uuid})' if self.uuid else ''}"


@dataclass(frozen=True)
class Sight:
    """What one attempt saw: `suspects` differ at `step`, all were equal at `equal_at`. `certain`: they are outvoted.

    `nodes`: of the world, in its order; `spares`: the allocation's others.
    """

    attempt: int
    step: int
    equal_at: int
    suspects: tuple[Suspect, ...]
    certain: bool
    nodes: tuple[str, ...]
    spares: tuple[str, ...] = ()


@dataclass(frozen=True)
class Examination:
    """examination.json. `suspects`, `certain`, `nodes`: of the newest sight with the nodes in their first places; `moved`: the node that
    changes places in stage `exchange`; `finding`, `node`, `why`: when it is closed, the node that is to blame; `attempts`: that saw a
    difference.
    """

    stage: Stage
    from_step: int
    to_step: int
    suspects: tuple[Suspect, ...]
    certain: bool
    nodes: tuple[str, ...]
    moved: str = ""
    finding: Finding = ""
    node: str = ""
    why: str = ""
    attempts: tuple[int, ...] = ()

    @property
    def open(self) -> bool:
        return self.stage != "closed"

    def to_json(self) -> bytes:
        return to_json({"v": EXAMINATION_VERSION, **asdict(self)})


def differed(before: Examination | None, sight: Sight) -> Examination:
    """Replicas were seen to differ."""
    if before is None or not before.open:
        return Examination("repeat", sight.equal_at, sight.step, sight.suspects, sight.certain, sight.nodes, attempts=(sight.attempt,))
    seen = replace(before, attempts=(*before.attempts, sight.attempt))
    again = _ranks(sight.suspects) & _ranks(before.suspects)
    if before.stage == "exchange":
        return _after_exchange(seen, sight)
    if not again:
        return _closed(seen, "undecided", why=f"the second time it was {_names(sight.suspects)}: it keeps to no rank and no node")
    moved = next(one.node for one in reversed(sight.suspects) if one.rank in again)
    if exchanged(sight.nodes, sight.spares, moved, before.suspects) is None:
        return _closed(seen, "undecided", why=f"{_names(sight.suspects)} again; the world has one node: rank and node cannot be told apart")
    certain = before.certain and sight.certain
    return replace(seen, stage="exchange", moved=moved, nodes=sight.nodes, suspects=sight.suspects, certain=certain)


def agreed(before: Examination) -> Examination:
    """Replicas were equal after every step up to `to_step`."""
    if before.stage == "repeat":
        return _closed(before, "transient", why=f"steps {before.from_step + 1} to {before.to_step} again on the same nodes: all equal")
    why = f"twice with {before.moved} in its place, and not when it was moved"
    return _closed(before, "persistent", node=before.moved, why=why)


def given_up(before: Examination, why: str) -> Examination:
    """It cannot be gone on with."""
    return _closed(before, "undecided", why=why)


def _after_exchange(seen: Examination, sight: Sight) -> Examination:
    moved, now = seen.moved, {one.node for one in sight.suspects}
    held = {one.rank for one in seen.suspects if one.node == moved}
    again = held & _ranks(sight.suspects)
    if not _was_moved(seen.nodes, sight.nodes, moved):
        return _closed(seen, "undecided", why=f"{_names(sight.suspects)}; {moved} could not be moved")
    if moved in now and not again:
        return _closed(seen, "persistent", node=moved, why=f"it went with {moved}: {_names(sight.suspects)}")
    if again and moved not in now:
        if seen.certain and sight.certain:
            return _closed(seen, "software", why=f"it stayed with {_names(sight.suspects)}, when {moved} was elsewhere")
        other = ", ".join(sorted({one.node for one in seen.suspects} - {moved}))
        return _closed(seen, "undecided", why=f"not {moved}, which was elsewhere: {other or 'another node'}, or software")
    return _closed(seen, "undecided", why=f"with {moved} moved it was {_names(sight.suspects)}")


def placed(exam: Examination | None, nodes: Sequence[str], spares: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Nodes of the world in order, spares, and a line for people, for an attempt that would be placed on `nodes` otherwise.

    The nodes of the first sight in their order, where the attempt may have them; one moved in the stage `exchange`.

    >>> exam = Examination("exchange", 5, 7, (Suspect(1, "b", 0),), True, ("a", "b", "c"), moved="b")
    >>> placed(exam, ["c", "a", "b"], [])
    (('b', 'a', 'c'), (), 'silent corruption: b changes places')
    >>> placed(exam, ["c", "a", "b"], ["d"])[:2], placed(None, ["c", "a"], ["b"])[:2]
    ((('a', 'd', 'c'), ('b',)), (('c', 'a'), ('b',)))
    """
    have = (*nodes, *spares)
    if exam is None or not exam.open:
        return tuple(nodes), tuple(spares), ""
    if len(exam.nodes) != len(nodes) or not set(exam.nodes) <= set(have):
        return tuple(nodes), tuple(spares), "silent corruption: the steps are run again, but not on the same nodes, which are not there"
    order, left = exam.nodes, tuple(node for node in have if node not in exam.nodes)
    if exam.stage == "repeat":
        return order, left, "silent corruption: the same steps again on the same nodes"
    changed = exchanged(order, left, exam.moved, exam.suspects)
    if changed is None:
        return order, left, f"silent corruption: there is no node that {exam.moved} could change places with"
    return changed, tuple(node for node in have if node not in changed), f"silent corruption: {exam.moved} changes places"


def exchanged(nodes: Sequence[str], spares: Sequence[str], moved: str, suspects: Sequence[Suspect]) -> tuple[str, ...] | None:
    """The order with `moved` elsewhere: a spare in its place, else a node without suspects, else any other; None where there is none."""
    if moved not in nodes:
        return None
    theirs = {one.node for one in suspects}
    free = [node for node in nodes if node not in theirs] + [node for node in nodes if node in theirs and node != moved]
    other = next(iter((*spares, *free)), None)
    if other is None:
        return None
    swap = {moved: other, other: moved}
    return tuple(swap.get(node, node) for node in nodes)


def read_examination(path: Path) -> Examination | None:
    """None where there is no file, or none that can be understood."""
    try:
        raw = json.loads(path.read_bytes())
        known = {one.name: raw[one.name] for one in fields(Examination) if one.name in raw}
        suspects = tuple(_suspect(one) for one in raw["suspects"])
        lists = {name: tuple(known.get(name, ())) for name in ("nodes", "attempts")}
        return Examination(**{**known, **lists, "suspects": suspects})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def culprit(path: Path) -> str:
    """The node that an examination found to be to blame; empty where none was."""
    exam = read_examination(path)
    return exam.node if exam is not None and exam.finding == "persistent" else ""


def _suspect(raw: Mapping[str, Any]) -> Suspect:
    return Suspect(int(raw["rank"]), str(raw["node"]), int(raw["gpu"]), str(raw.get("uuid", "")))


def _closed(exam: Examination, finding: Finding, *, why: str, node: str = "") -> Examination:
    return replace(exam, stage="closed", finding=finding, why=why, node=node)


def _was_moved(before: Sequence[str], now: Sequence[str], node: str) -> bool:
    return node not in now or list(before).index(node) != list(now).index(node)


def _ranks(suspects: Sequence[Suspect]) -> set[int]:
    return {one.rank for one in suspects}


def _names(suspects: Sequence[Suspect]) -> str:
    return " or ".join(map(str, suspects))
