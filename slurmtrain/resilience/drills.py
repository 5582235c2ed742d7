"""The kinds of drill: what each does to a run, and what should come of it. Data, and what is worked out of it; no deed.

| way | who does it |
|---|---|
| rank | a rank to itself, by faults.json (`telemetry.faults`) |
| signal | `scancel --batch --signal`, as a user would |
| deed | a small process on a node of the job (`resilience.deed`), by srun or, without Slurm, here |
| hand | a person with the power over nodes and file systems; `tools/bench/recovery.py` on a cluster of its own |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from slurmtrain.errors import UserError
from slurmtrain.telemetry.causes import Cause
from slurmtrain.telemetry.faults import Fault, FaultKind

Way = Literal["rank", "signal", "deed", "hand"]
When = Literal["step", "save", "evaluation"]
Deed = Literal["supervisor", "agent", "save", "shard"]
Seen = Cause | Literal["skip", "straggler", "save_failed", "nothing"]
"""How a fault may be called: the category of the attempt that it ended, or the event that tells of it."""
Went = Literal["went on", "in place", "requeue", "held", "ended"]
"""How the run got over it: within the attempt; by another attempt in the same start of the job; by another start; or not at all."""


@dataclass(frozen=True)
class Kind:
    """`does`: what happens; `seen`: what it may be called; `went`: how the run may go on; `fault`, `value`: of a rank;
    `signals`: to the batch script, 50 ms apart, at a `when`; `deed`: on a node; `sets`: values of the job that the drill needs,
    where the user says no others; `same_loss`: whether the losses are those of an undisturbed run; `how`: for people to do it.
    """

    name: str
    does: str
    way: Way
    seen: tuple[Seen, ...]
    went: tuple[Went, ...]
    fault: FaultKind | None = None
    value: float = 1.0
    signals: tuple[str, ...] = ()
    when: When = "step"
    deed: Deed | None = None
    sets: tuple[str, ...] = ()
    same_loss: bool = True
    how: str = ""


_AGAIN: tuple[Went, ...] = ("in place", "requeue")
_CLUSTER = "tools/bench/recovery.py does it on a devcluster"

KINDS: tuple[Kind, ...] = (
    Kind("exit", "a rank exits with code 7, without a word", "rank", ("rank_crash",), _AGAIN, "exit", 7),
    Kind("sigkill", "a rank is ended by SIGKILL", "rank", ("rank_crash",), _AGAIN, "signal", 9),
    Kind("exception", "a rank raises an exception", "rank", ("rank_crash",), _AGAIN, "exception"),
    Kind("sigstop", "a rank is stopped (SIGSTOP)", "rank", ("hang",), _AGAIN, "stop"),
    Kind("memory", "a rank runs out of host memory (its own RLIMIT_AS)", "rank", ("out_of_memory",), _AGAIN, "memory"),
    Kind(
        "nan",
        "a gradient is not a number",
        "rank",
        ("skip",),
        ("went on",),
        "nan",
        sets=("recovery.numerics.skip_steps=2",),
        same_loss=False,
    ),
    Kind(
        "bitflip",
        "one bit of a parameter turns over in one replica",
        "rank",
        ("silent_corruption",),
        _AGAIN,
        "bitflip",
        20,
        sets=("recovery.corruption.every_steps=5",),
    ),
    Kind("slow", "a rank computes half a second longer in each step", "rank", ("straggler",), ("went on",), "slow", 0.5),
    Kind("term", "TERM to the batch script", "signal", ("stopped",), ("ended",), signals=("TERM",)),
    Kind("two-signals", "TERM and USR2, 50 ms apart", "signal", ("time_limit",), ("requeue",), signals=("TERM", "USR2")),
    Kind("signal-in-save", "USR2 while a checkpoint is written", "signal", ("time_limit",), ("requeue",), signals=("USR2",), when="save"),
    Kind(
        "signal-in-evaluation", "USR2 during an evaluation", "signal", ("time_limit",), ("requeue",), signals=("USR2",), when="evaluation"
    ),
    Kind("supervisor-killed", "the supervisor is ended by SIGKILL", "deed", ("launch_failure", "rank_crash"), _AGAIN, deed="supervisor"),
    Kind("agent-killed", "a node's agent is ended by SIGKILL", "deed", ("nothing",), ("went on",), deed="agent"),
    Kind("save-interrupted", "a rank is killed while it writes a checkpoint", "deed", ("rank_crash",), _AGAIN, deed="save"),
    Kind("shard-corrupted", "the newest checkpoint is damaged, then a rank killed", "deed", ("rank_crash",), _AGAIN, deed="shard"),
    Kind(
        "node-lost",
        "a node loses its power; the job has a spare",
        "hand",
        ("node_failure",),
        ("in place",),
        how="--spares 1; power it off, or tools/devcluster fail NODE",
    ),
    Kind("node-lost-no-spare", "a node loses its power", "hand", ("node_failure",), ("requeue",), how="tools/devcluster fail NODE"),
    Kind(
        "node-hung",
        "a node stops answering; the job has a spare",
        "hand",
        ("hang", "node_failure"),
        ("in place",),
        how="--spares 1; tools/devcluster hang NODE",
    ),
    Kind(
        "batch-host-lost-spare",
        "the batch host loses its power; the job has a spare",
        "hand",
        ("node_failure",),
        ("requeue",),
        how="--spares 1; tools/devcluster fail its first node",
    ),
    Kind("batch-host-lost", "the batch host loses its power", "hand", ("node_failure",), ("requeue",), how="tools/devcluster fail"),
    Kind(
        "node-wakes",
        "a hung node goes on while the next attempt saves",
        "hand",
        ("hang", "node_failure"),
        ("in place",),
        how="--spares 1; tools/devcluster hang NODE, then restore NODE",
    ),
    Kind(
        "disk-full", "the disk of the run folder is full", "hand", ("save_failed", "nothing", "storage"), ("went on", *_AGAIN), how=_CLUSTER
    ),
    Kind(
        "folder-gone",
        "the shared folder is gone for 20 s",
        "hand",
        ("nothing", "save_failed", "storage"),
        ("went on", *_AGAIN),
        how=_CLUSTER,
    ),
    Kind("folder-stalled", "the shared folder stands still for 120 s", "hand", ("nothing",), ("went on",), how="fsfreeze; " + _CLUSTER),
    Kind("prolog-failure", "the prolog of a start fails", "hand", ("prolog_failure",), ("held",), how="a prolog that exits with 1"),
    Kind(
        "mpi-singleton",
        "ranks start outside MPI, each a world of its own",
        "hand",
        ("configuration", "launch_failure"),
        ("ended",),
        how=_CLUSTER,
    ),
    Kind("port-clash", "the port where ranks would meet is taken", "hand", ("nothing", "network"), ("went on", *_AGAIN), how=_CLUSTER),
    Kind("connection-reset", "a connection between two ranks is reset", "hand", ("network", "rank_crash"), _AGAIN, how=_CLUSTER),
    Kind("partition-20s", "two nodes do not reach each other for 20 s", "hand", ("nothing",), ("went on",), how=_CLUSTER),
    Kind("partition", "two nodes do not reach each other any more", "hand", ("hang", "network"), _AGAIN, how=_CLUSTER),
    Kind(
        "network-bad",
        "delay and loss on the network of a node",
        "hand",
        ("nothing", "straggler"),
        ("went on",),
        how="tc qdisc add .. netem",
    ),
)
NAMES = tuple(kind.name for kind in KINDS)


def kind_of(name: str) -> Kind:
    """By name. Raises UserError."""
    found = next((kind for kind in KINDS if kind.name == name), None)
    if found is None:
        raise UserError(f"no drill is called {name!r}: slurmtrain drill list")
    return found


def faults_for(kind: Kind, rank: int, step: int) -> tuple[Fault, ...]:
    """What faults.json shall hold: once, in the first attempt."""
    return (Fault(kind.fault, rank, step, 1, kind.value),) if kind.fault is not None else ()


def sets_for(kind: Kind, said: Sequence[str]) -> tuple[str, ...]:
    """The drill's own values, then the user's: of one key the last counts.

    >>> sets_for(kind_of("nan"), ["recovery.numerics.skip_steps=0"])[-1]
    'recovery.numerics.skip_steps=0'
    """
    return (*kind.sets, *said)


def default_step(steps: int, every: int) -> int:
    """When it happens: past the second checkpoint and between two, else in the middle of the run.

    >>> default_step(100, 10), default_step(20, 0), default_step(20, 10)
    (23, 10, 10)
    """
    after = 2 * every + max(1, every // 3)
    return after if every and after < steps else max(1, steps // 2)
