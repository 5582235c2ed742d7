"""What a run's time is spent on: kinds, and the parts that they make up.

| part | kind | from - to |
|---|---|---|
| queue | pending | a person's submission - the job starts |
| | requeue | an attempt's end - the same job, or the next link of its chain, starts again; the site's delay is in it |
| startup | check | the attempt begins - its nodes are checked |
| | launch | the ranks are asked for - rank 0's process is born |
| | python | that - imports done |
| | mpi, group | MPI up; device and process group (NCCL, gloo) up |
| | build, load | model, optimiser, data, buffers; the checkpoint |
| | startup | all of it, where a record of an earlier release does not say more |
| productive | productive | a step that stands: no later attempt began before it |
| redone | redone | a step that was lost and is trained again; what a fault left of the step it came in |
| checkpoint | checkpoint | training stands still for a save |
| evaluation | evaluation | |
| detection | detection | a fault - the supervisor has noticed it |
| restart | ending | that, or the agreed end of the ranks - the attempt is closed |
| | restart | an attempt's end - the next one's beginning, in the same allocation: choosing nodes, the pause |
| | | a way back to an earlier checkpoint within an attempt |
| other | idle | nobody had asked for a job, or nobody told |
| | other | the rest of an attempt: the loop between two steps, what no record tells |
"""

from __future__ import annotations

from typing import Literal, get_args

Kind = Literal[
    "pending",
    "requeue",
    "check",
    "launch",
    "python",
    "mpi",
    "group",
    "build",
    "load",
    "startup",
    "productive",
    "redone",
    "checkpoint",
    "evaluation",
    "detection",
    "ending",
    "restart",
    "idle",
    "other",
]
Part = Literal["queue", "startup", "productive", "redone", "checkpoint", "evaluation", "detection", "restart", "other"]
KINDS: tuple[Kind, ...] = get_args(Kind)
PARTS: tuple[Part, ...] = get_args(Part)
STARTUP: frozenset[Kind] = frozenset({"check", "launch", "python", "mpi", "group", "build", "load", "startup"})
STAGES: tuple[Kind, ...] = ("python", "mpi", "group", "build", "load")
"""Of the event `start`, in the order in which they are laid on the timeline."""
_OF: dict[Kind, Part] = {"pending": "queue", "requeue": "queue", "ending": "restart", "restart": "restart", "idle": "other"}
_SAME: dict[str, Part] = {part: part for part in PARTS}


def part_of(kind: Kind) -> Part:
    """The part that a kind belongs to.

    >>> part_of("mpi"), part_of("requeue"), part_of("redone")
    ('startup', 'queue', 'redone')
    """
    return "startup" if kind in STARTUP else _OF.get(kind) or _SAME[kind]
