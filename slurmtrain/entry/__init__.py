"""For scripts that slurmtrain runs by `[entry]`: be alive, be told to stop, go on from the newest checkpoint. All of it may be left out.

    from slurmtrain.entry import heartbeat, resume_from, stop_requested

    start = load(resume_from()) if resume_from() else 0
    for step in range(start + 1, steps + 1):
        loss = train(step)
        heartbeat(step, loss=loss)
        if stop_requested():                 # each rank's own answer: let all agree before they leave the loop
            ...

Standard library alone. Outside slurmtrain (torchrun, a laptop) nothing happens: no stop, nothing to resume from.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from slurmtrain.entry import wire

__all__ = ["durable", "heartbeat", "resume_from", "stop_requested"]


def heartbeat(step: int, *, phase: str = "step", **metrics: Any) -> None:
    """Tell that this rank is alive, and has completed `step`; of the first rank `metrics` (numbers, loss=...) are told with it.

    `phase`: "save", "eval", "data" or "load" before something that takes long: each has its own patience. Costs microseconds, touches no
    shared folder, raises nothing. From the first one on the process leaves its stacks when it is found to hang.
    """
    wire.answer()
    wire.send({"step": int(step), "phase": phase, "metrics": metrics})


def stop_requested() -> bool:
    """Whether the script should save and leave, with exit code 0: the time limit nears, the job is preempted, or a person asked.

    Ranks of different nodes may hear it a moment apart. From the first call on the script is told by this alone, and by no signal.
    """
    wire.listen()
    marker = os.environ.get(wire.STOP_VARIABLE)
    return bool(marker) and os.path.lexists(str(marker))


def resume_from() -> Path | None:
    """The newest checkpoint that was there when the attempt began, the same on all ranks; None: from the beginning.

    What counts is what `entry.checkpoint` fits, and what `durable` told.
    """
    path = os.environ.get(wire.RESUME_VARIABLE)
    return Path(path) if path else None


def durable(step: int, path: str | os.PathLike[str]) -> None:
    """A checkpoint of `step` is complete in `path`: for scripts whose checkpoints no pattern of names tells. Of the first rank alone."""
    wire.send({"step": int(step), "durable": os.path.abspath(path)})  # noqa: PTH100 links stay
