"""The rows of the table of recovery: which kind of drill, on how many nodes, what is done to it from outside, and what must come of it."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch

from slurmtrain.resilience.drills import Went


@dataclass(frozen=True)
class Entry:
    """`act`: name of what the bench does, for kinds that are done by hand (`recovery_acts`); `went`: the only way that is right here;
    `place`: where the run folder lies (`recovery_places`); `prepare`: done before the run, undone after; `sets`: values of the job.
    """

    kind: str
    went: Went
    nodes: int = 2
    spares: int = 0
    act: str = ""
    place: str = ""
    prepare: str = ""
    sets: tuple[str, ...] = ()
    alone: bool = False

    @property
    def size(self) -> int:
        return self.nodes + self.spares


ENTRIES: tuple[Entry, ...] = (
    Entry("exit", "in place"),
    Entry("sigkill", "in place"),
    Entry("exception", "in place"),
    Entry("sigstop", "in place", spares=1),
    Entry("node-lost", "in place", spares=1, act="fail last"),
    Entry("node-lost-no-spare", "requeue", act="fail last"),
    Entry("node-hung", "in place", spares=1, act="hang last"),
    Entry("batch-host-lost-spare", "requeue", spares=1, act="fail first"),
    Entry("batch-host-lost", "requeue", act="fail first"),
    Entry("supervisor-killed", "in place"),
    Entry("agent-killed", "went on"),
    Entry("term", "ended"),
    Entry("two-signals", "requeue"),
    Entry("save-interrupted", "in place"),
    Entry("shard-corrupted", "in place"),
    Entry("nan", "went on"),
    Entry("bitflip", "in place"),
    Entry("slow", "went on", sets=("recovery.stragglers.steps=8",)),
    Entry("memory", "in place"),
    Entry("disk-full", "went on", act="fill", place="small"),
    Entry("folder-gone", "went on", act="move away", place="own"),
    Entry("folder-stalled", "went on", act="freeze", place="loop"),
    Entry("node-wakes", "in place", spares=1, act="hang and wake"),
    Entry("connection-reset", "in place", act="reset"),
    Entry("signal-in-save", "requeue"),
    Entry("signal-in-evaluation", "requeue", sets=("evaluation.every_steps=12", 'evaluation.sets={held="{data}"}')),
    Entry("mpi-singleton", "ended", prepare="no mpi"),
    Entry("prolog-failure", "held", prepare="prolog", alone=True),
)
LEFT_OUT = {
    "port-clash": "cannot happen: ranks meet over MPI, and scripts on a port that the kernel gave and that stays bound for the attempt",
    "partition-20s": "all nodes of a devcluster share one network stack: needs network namespaces",
    "partition": "as partition-20s",
    "network-bad": "as partition-20s",
}
"""Kinds that have no row, and why."""


def wanted(pattern: str) -> tuple[Entry, ...]:
    """Rows whose kind fits: `*`, `?`, and several patterns with commas between them.

    >>> [entry.kind for entry in wanted("nan,sig*")]
    ['sigkill', 'sigstop', 'nan', 'signal-in-save', 'signal-in-evaluation']
    """
    words = pattern.split(",")
    return tuple(entry for entry in ENTRIES if any(fnmatch(entry.kind, word) for word in words))
