"""What torch's flight recorders knew of the ranks' collectives: the first one that some ranks of a process group never entered. Pure.

Read is the recorder's JSON form (`torch._C._distributed_c10d._dump_fr_trace_json`), one file a rank; nothing is unpickled. Of each entry
`process_group` ([name, description]), `collective_seq_id`, `is_p2p`, `profiling_name` and `state` count; `pg_config` names the members
of a group as world ranks (NCCL's alone), `pg_status` by `pg_id` the newest collective that was entered, whose entry may be gone: a
recorder keeps the newest alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_LIMIT_BYTES = 64 << 20
_DEFAULT = "default_pg"
"""torch's description of the group of the whole world, whose `pg_id` is 0."""


@dataclass(frozen=True)
class Group:
    """One process group as one rank has recorded it. `entered`: names of collectives by sequence number; `newest`: that was entered."""

    members: tuple[int, ...] = ()
    what: str = ""
    entered: Mapping[int, str] = field(default_factory=dict)
    newest: int = 0


@dataclass(frozen=True)
class Missing:
    """Collective `seq` of a group was entered by some of its ranks, and never by `absent`."""

    group: str
    seq: int
    operation: str
    entered: tuple[int, ...]
    absent: tuple[int, ...]

    def __str__(self) -> str:
        who = f"{'ranks' if len(self.absent) > 1 else 'rank'} {' '.join(map(str, self.absent))}"
        wait = f"{_some(self.entered)} {'wait' if len(self.entered) > 1 else 'waits'}"
        return f"{who} never entered {self.operation} number {self.seq} of group {self.group}, where {wait}"


def read_flight(path: Path) -> dict[str, Group] | None:
    """A rank's groups by name; None where there is no such file, or it is none."""
    try:
        return groups_of(json.loads(path.read_bytes())) if path.stat().st_size <= _LIMIT_BYTES else None
    except (OSError, ValueError):
        return None


def groups_of(raw: Any) -> dict[str, Group]:
    """Raises ValueError for what is no record."""
    try:
        config: Mapping[str, Any] = raw.get("pg_config") or {}
        status: Mapping[str, Any] = raw.get("pg_status") or {}
        entries: dict[str, dict[int, str]] = {name: {} for name in config}
        known = {name: _Known("0" if one.get("desc") == _DEFAULT else "", str(one.get("desc") or "")) for name, one in config.items()}
        for entry in raw.get("entries") or ():
            name, what = map(str, entry["process_group"])
            known[name] = _Known(str(entry.get("pg_id", "")), what)
            found = entries.setdefault(name, {})
            if not entry.get("is_p2p"):
                found[int(entry["collective_seq_id"])] = str(entry["profiling_name"]).rpartition(":")[2]
        return {name: _group(known[name], config.get(name), status.get(known[name].number), entries[name]) for name in entries}
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"no record of torch's flight recorder: {error!r}") from error


@dataclass(frozen=True)
class _Known:
    """`number`: torch's pg_id."""

    number: str
    what: str


def _group(known: _Known, config: Any, status: Any, entered: Mapping[int, str]) -> Group:
    """World ranks are written as text by torch, and numbers may be."""
    ranks = (config or {}).get("ranks") or ()
    members = tuple(int(rank) for rank in (json.loads(ranks) if isinstance(ranks, str) else ranks))
    newest = int((status or {}).get("last_enqueued_collective") or 0)
    return Group(members, known.what, entered, max(newest, *entered, 0))


def first_missing(records: Mapping[int, Mapping[str, Group]]) -> Missing | None:
    """The collective whose absent ranks wait nowhere else, where there is one: others are late because of those. `records` by world rank.

    Ranks without a record are not held to have been absent. Those that have entered no collective of a group at all are.
    """
    found = [one for name in sorted({n for r in records.values() for n in r}) if (one := _in_group(name, records)) is not None]
    waiting = {rank for one in found for rank in one.entered}
    return max(found, key=lambda one: (waiting.isdisjoint(one.absent), -len(one.absent), len(one.entered)), default=None)


def _in_group(name: str, records: Mapping[int, Mapping[str, Group]]) -> Missing | None:
    having = {rank: groups[name] for rank, groups in records.items() if name in groups}
    members = {rank for group in having.values() for rank in group.members} or set(having)
    known = sorted(members & records.keys())
    entered = {rank: having.get(rank, Group()).entered for rank in known}
    newest = {rank: having.get(rank, Group()).newest for rank in known}
    behind = min(newest.values(), default=0)
    if behind == max(newest.values(), default=0):
        return None
    seq = behind + 1
    there = tuple(rank for rank in known if newest[rank] >= seq)
    absent = tuple(rank for rank in known if newest[rank] < seq)
    operation = next((entered[rank][seq] for rank in there if seq in entered[rank]), "a collective")
    what = next((group.what for group in having.values() if group.what), "")
    return Missing(what or name, seq, operation, there, absent)


def _some(ranks: Iterable[int], limit: int = 8) -> str:
    shown = list(ranks)
    more = f" and {len(shown) - limit} more" if len(shown) > limit else ""
    return f"{'ranks' if len(shown) > 1 else 'rank'} {' '.join(map(str, shown[:limit]))}{more}"
