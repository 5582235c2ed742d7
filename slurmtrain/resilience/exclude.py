"""exclude.json: nodes that the run avoids, until when and why. People write it, too: their entries are kept as they are.

`{"v":1,"nodes":{"n3":{"until":<seconds since the epoch, or null>,"reason":"..","evidence":"..","attempt":4}}}`; `attempt` is there in what
the supervisor wrote, and nowhere else.

| what happened | who is avoided |
|---|---|
| node failure, silent corruption | the nodes that it was |
| a hang with a node that is named | that node |
| a node failed its check, and as many or more others passed | that node |
| most nodes failed it | none: it is not the nodes |
| a rank crashed, memory ran out, a loss was not finite | none: the code's affair until it is shown otherwise |
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurmtrain.atomic import Disk, to_json
from slurmtrain.resilience.records import Outcome
from slurmtrain.telemetry.causes import OF_A_NODE

EXCLUDE_VERSION = 1


@dataclass(frozen=True)
class Blame:
    """A node that is to be avoided. `reason`: one line for people; `evidence`: what was seen."""

    node: str
    reason: str
    evidence: str = ""


@dataclass(frozen=True)
class Exclusion:
    """An entry of exclude.json. `until`: seconds since the epoch, None: for good; `attempt`: that led to it, 0: a person wrote it."""

    reason: str
    until: float | None = None
    attempt: int = 0


def read_exclusions(path: Path, now: float) -> dict[str, Exclusion]:
    """What is in force now, by node; no file, or a damaged one, is none, and so is a damaged entry."""
    try:
        nodes = _entries(path)
    except (OSError, ValueError):
        return {}
    found = {node: _exclusion(entry) for node, entry in nodes.items()}
    return {node: one for node, one in found.items() if one is not None and (one.until is None or one.until > now)}


def read_excluded(path: Path, now: float) -> dict[str, str]:
    """Nodes to avoid now, and why."""
    return {node: one.reason for node, one in read_exclusions(path, now).items()}


def blamed(outcome: Outcome, lost: Sequence[str] = ()) -> tuple[Blame, ...]:
    """Nodes that an attempt's end is to be laid at. `lost`: all that are gone, where more than `outcome.node` are."""
    of_node = outcome.kind == "node_failure" or outcome.category in OF_A_NODE
    if not of_node and outcome.category != "hang":
        return ()
    reason = (outcome.category or "node_failure").replace("_", " ")
    nodes = dict.fromkeys(filter(None, (outcome.node, *(lost if of_node else ()))))
    return tuple(Blame(node, reason, outcome.cause) for node in nodes)


def unfit(faults: Mapping[str, str], passed: int) -> tuple[Blame, ...]:
    """Of nodes that failed their check, those to avoid. `passed`: how many others passed it."""
    if passed < max(1, len(faults)):
        return ()
    return tuple(Blame(node, "failed its check", problem) for node, problem in faults.items())


def avoid(path: Path, disk: Disk, blames: Iterable[Blame], *, attempt: int, now: float, hours: float) -> None:
    """Add to exclude.json. Raises OSError, and ValueError for a file that is damaged: what a person wrote there is not thrown away."""
    try:
        before = _entries(path)
    except FileNotFoundError:
        before = {}
    after = merged(before, blames, attempt=attempt, now=now, hours=hours)
    if after != before:
        disk.write(path, to_json({"v": EXCLUDE_VERSION, "nodes": after}))


def merged(before: Mapping[str, Any], blames: Iterable[Blame], *, attempt: int, now: float, hours: float) -> dict[str, Any]:
    """The entries with the new ones. What a person wrote stays while it is in force; of ours the newest counts, and what is over goes."""
    kept = {node: entry for node, entry in before.items() if _of_person(entry) or _in_force(entry, now)}
    for blame in blames:
        old = kept.get(blame.node)
        if old is None or not (_of_person(old) and _in_force(old, now)):
            kept[blame.node] = {"until": now + hours * 3600, "reason": blame.reason, "evidence": blame.evidence, "attempt": attempt}
    return kept


def _entries(path: Path) -> dict[str, Any]:
    """Raises OSError, ValueError."""
    raw = json.loads(path.read_bytes())
    nodes = raw.get("nodes") if isinstance(raw, dict) else None
    if not isinstance(nodes, dict):
        raise ValueError(f"{path}: not a list of nodes to avoid")  # noqa: TRY004 a damaged file, whatever is wrong with it
    return nodes


def _exclusion(entry: Any) -> Exclusion | None:
    try:
        until = entry.get("until")
        return Exclusion(str(entry.get("reason", "")), None if until is None else float(until), int(entry.get("attempt", 0)))
    except (AttributeError, TypeError, ValueError):
        return None


def _of_person(entry: Any) -> bool:
    one = _exclusion(entry)
    return one is None or not one.attempt


def _in_force(entry: Any, now: float) -> bool:
    one = _exclusion(entry)
    return one is not None and (one.until is None or one.until > now)
