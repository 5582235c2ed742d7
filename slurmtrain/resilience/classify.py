"""What an attempt's end was: from the ranks' own records and Slurm's word about nodes, never from the launcher's code. Pure.

In this order; the first that holds is the outcome:

| evidence | outcome |
|---|---|
| a rank's record says `config` | config, with its words |
| a rank's record says `error`, and not that a peer was lost | failed, that rank's words |
| all records `finished`; or some, and the last step's checkpoint is there | finished |
| a rank hangs, so that the supervisor ended the step | failed: which rank, where, doing what, for how long |
| a record says `stopped` (all ranks agreed, the save is done) | stopped or requeue, by the reason; of a rank too slow its node |
| a stop was asked, and nothing but missing records and lost peers came of it | requeue; failed where a person asked |
| some rank is without a record, and the run's folder is gone | failed, storage: nobody could tell how it ended, and no node is to blame |
| no record, and no rank ever spoke | launch, or node_failure where Slurm calls a node down |
| the launcher saw a rank end with a code of its own | failed: "rank 3 code 7" |
| every rank of a node is without a record | node_failure once Slurm says so; failed when it calls the node healthy |
| the launcher itself was ended by a signal | failed: that signal |
| some rank of a node is without a record | failed, the first such rank |
| some `finished`, the others lost them | failed, the first that left |
| only lost peers | failed, the first of them |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slurmtrain.errors import one_line
from slurmtrain.resilience.hang_types import Hang
from slurmtrain.resilience.records import OutcomeKind
from slurmtrain.telemetry.causes import Cause
from slurmtrain.telemetry.exitfile import PEER_LOST, ExitRecord, StopReason, is_follower
from slurmtrain.units import counted


@dataclass(frozen=True)
class Death:
    """A task's end in the launcher's words. `code`: its exit code; None: ended by a signal (`how` names it)."""

    code: int | None
    how: str


@dataclass(frozen=True)
class Evidence:
    """What is known when the launcher is gone.

    `records` and `deaths` by world rank; `spoke`: an event or a record of this attempt was seen; `asked`: the stop that the
    supervisor passed on; `down`: nodes that Slurm calls down (None: not asked, or it has not made up its mind);
    `complete`: the checkpoint of the last step is there; `log`: the last line of the ranks' output; `ended_because`: why the supervisor
    itself ended the step, where it did; `launcher_signal`: the signal that ended the launcher itself ("SIGKILL"); `own_will`: the stop was
    asked because of USR2 or the deadline; `hang`: what was found out about ranks that did not move; `oom`: Slurm's line about memory that
    ran out; `folder_gone`: the run's folder cannot be seen just now.
    """

    nodes: tuple[str, ...]
    tasks_per_node: int
    records: Mapping[int, ExitRecord]
    deaths: Mapping[int, Death] = field(default_factory=dict)
    spoke: bool = False
    asked: StopReason | None = None
    down: frozenset[str] | None = None
    complete: bool = False
    log: str = ""
    ended_because: str = ""
    launcher_signal: str = ""
    own_will: bool = False
    hang: Hang | None = None
    oom: str = ""
    folder_gone: bool = False

    @property
    def world(self) -> int:
        return len(self.nodes) * self.tasks_per_node

    def node_of(self, rank: int) -> str:
        return self.nodes[rank // self.tasks_per_node]

    def missing(self) -> list[int]:
        """Ranks without a record."""
        return [rank for rank in range(self.world) if rank not in self.records]

    def silent_nodes(self) -> list[str]:
        """Nodes none of whose ranks left a record, or was seen to end by the launcher."""
        heard = {self.node_of(rank) for rank in (*self.records, *self.deaths) if rank < self.world}
        return [node for node in self.nodes if node not in heard]


@dataclass(frozen=True)
class Verdict:
    """The outcome's kind and first cause. `suspects`: nodes that are not known to be gone or healthy; the verdict may change with that.

    `category`: the cause in one word (`causes_of`); None until all that it depends on is known.
    """

    kind: OutcomeKind
    cause: str
    rank: int | None = None
    node: str = ""
    step: int | None = None
    suspects: tuple[str, ...] = ()
    category: Cause | None = None


def classify(e: Evidence) -> Verdict:
    """The table above."""
    ways = (_from_faults, _from_agreement, _from_hang, _from_storage, _from_stop, _from_silence, _from_deaths, _from_missing)
    for decide in ways:
        if verdict := decide(e):
            return verdict
    early = min((r for r in e.records.values() if r.kind == "finished"), key=lambda r: r.rank, default=None)
    first = min((r for r in e.records.values() if r.kind != "finished"), key=lambda r: r.rank)
    if early is not None:
        early_end = f"ended with code 0 before the others, which lost it: {first.error}"
        return replace(_of_record("failed", early, e.records, early_end), category="rank_crash")
    return _of_record("failed", first, e.records, f"{first.error}; no rank left an error of its own: a rank or the network hangs")


def _of_record(kind: OutcomeKind, record: ExitRecord, records: Mapping[int, ExitRecord], cause: str) -> Verdict:
    others = sum(r.kind == record.kind and not is_follower(r.error) for r in records.values()) - 1
    more = f" (and {counted(others, 'more rank')})" if others > 0 and kind in {"config", "failed"} else ""
    where = f"rank {record.rank} on {record.node}: " if record.node else f"rank {record.rank}: "
    return Verdict(kind, f"{where}{cause}{more}", record.rank, record.node, _step(records))


def _step(records: Mapping[int, ExitRecord]) -> int | None:
    return max((r.step for r in records.values()), default=None)


def _from_faults(e: Evidence) -> Verdict | None:
    for kind, means in (("config", "config"), ("error", "failed")):
        own = [r for r in e.records.values() if r.kind == kind and not (kind == "error" and is_follower(r.error))]
        if own:
            first = min(own, key=lambda r: r.rank)
            return _of_record("config" if means == "config" else "failed", first, e.records, first.error or f"code {first.code}")
    return None


def _from_agreement(e: Evidence) -> Verdict | None:
    kinds = {r.kind for r in e.records.values()}
    if "finished" in kinds and (e.complete or (kinds == {"finished"} and not e.missing())):
        early = any(r.kind == "finished" and r.error == "target" for r in e.records.values())
        return Verdict("finished", "its target was reached" if early else "all steps done", step=_step(e.records))
    if "stopped" not in kinds:
        return None
    if e.launcher_signal and e.asked is None and not e.ended_because:
        return Verdict("failed", f"the launcher itself was ended by {e.launcher_signal}; the ranks saved and left", step=_step(e.records))
    reasons = sorted({r.error for r in e.records.values() if r.kind == "stopped" and r.error})
    by_person = e.asked in {"stop", "interrupt"} or (e.asked is None and bool(set(reasons) & {"stop", "interrupt"}))
    if e.hang is not None and not by_person:
        return Verdict("requeue", f"stopped at a checkpoint: {e.hang.words}", e.hang.rank, e.hang.node, _step(e.records))
    why = e.asked or ", ".join(reasons) or "asked"
    return Verdict("stopped" if by_person else "requeue", f"stopped at a checkpoint ({why})", step=_step(e.records))


def _from_hang(e: Evidence) -> Verdict | None:
    """A node that Slurm calls down is a dead node, whatever its ranks looked like."""
    if e.hang is None:
        return None
    if e.hang.node and e.hang.node in (e.down or ()):
        return Verdict("node_failure", f"node {e.hang.node} is down: {e.hang.words}", node=e.hang.node, step=_step(e.records))
    return Verdict("failed", e.hang.words, e.hang.rank, e.hang.node, _step(e.records))


def _from_storage(e: Evidence) -> Verdict | None:
    if not e.folder_gone or not e.missing():
        return None
    cause = "the run's folder is gone, so that ranks could not tell how they ended: was it moved, or is its file system away?"
    return Verdict("failed", cause, step=_step(e.records), category="storage")


def _from_stop(e: Evidence) -> Verdict | None:
    if e.asked is None or any(d.code is not None for d in e.deaths.values()):
        return None
    why = e.ended_because or "they ended before they had saved"
    return Verdict(
        "requeue" if e.asked == "requeue" else "failed", f"a stop was asked, the ranks did not save: {why}", step=_step(e.records)
    )


def _from_silence(e: Evidence) -> Verdict | None:
    if e.records or e.spoke:
        return None
    if down := [n for n in e.nodes if n in (e.down or ())]:
        return Verdict("node_failure", f"node {' '.join(down)} is down", node=down[0])
    seen = [f"rank {rank} {death.how}" for rank, death in sorted(e.deaths.items())][:1]
    said = "; ".join(part for part in (e.ended_because, *seen, e.log) if part)
    return Verdict("launch", f"no rank has spoken: {said or 'the launcher printed nothing'}")


def _from_deaths(e: Evidence) -> Verdict | None:
    missing = set(e.missing())
    own = {rank: d for rank, d in e.deaths.items() if rank in missing}
    coded = [rank for rank, d in own.items() if d.code is not None]
    struck = [rank for rank, d in own.items() if d.code is None and d.how not in {"Terminated", "Killed"}]
    if not (coded or struck):
        return None
    rank = min(coded or struck)
    code = own[rank].code
    how = own[rank].how if code is None else f"code {code}"
    said = e.oom or ("" if PEER_LOST in e.log or is_follower(e.log) else e.log)
    cause = f"rank {rank} {how} on {e.node_of(rank)}, without a record of its own{f'; the last line: {said}' if said else ''}"
    return Verdict("failed", one_line(cause), rank, e.node_of(rank), _step(e.records))


def _own_words(e: Evidence) -> str:
    """The log's last line; of a rank that the others lost it says nothing about the cause."""
    if PEER_LOST not in e.log and not is_follower(e.log):
        return e.log
    return "the others lost it; killed from outside? out of memory, or by hand"


def _from_missing(e: Evidence) -> Verdict | None:
    missing = e.missing()
    if not missing:
        return None
    silent = e.silent_nodes()
    gone = [n for n in silent if e.down is None or n in e.down]
    if silent and gone:
        word = "lost" if e.down is None else "down"
        return Verdict(
            "node_failure",
            f"node {' '.join(gone)} is {word}: none of its ranks left a record",
            node=gone[0],
            step=_step(e.records),
            suspects=tuple(gone) if e.down is None else (),
        )
    if e.launcher_signal and not e.ended_because:
        return Verdict("failed", f"the launcher itself was ended by {e.launcher_signal}, and the ranks with it", step=_step(e.records))
    first = next((rank for rank in missing if rank in e.deaths), missing[0])
    where = f"rank {first} on {e.node_of(first)}"
    if not e.ended_because and first in e.deaths and e.deaths[first].how == "Killed":
        cause = f"{where} was killed (SIGKILL) and left no record: {e.oom or 'out of memory, or by hand'}"
    else:
        words = e.ended_because or (e.deaths[first].how if first in e.deaths else "") or _own_words(e)
        cause = f"{where} ended without a record{f': {words}' if words else ''}"
    return Verdict("failed", cause, first, e.node_of(first), _step(e.records))
