"""One rank's figures of a step, and what becomes of them when all ranks' are added up.

They ride in the reduction that the next step makes anyway (`Step`'s passengers), so that they cost no synchronisation of their own;
what they say is told one step late, as `previous`. A sum gives means; for the largest value each rank has a slot of its own, in
which all others have nothing.

>>> mine = Figures(step=7, seconds={"data": 0.2, "optimizer": 0.1}, waited={"tp": 0.5}, work_s=1.0, memory_bytes=80.0, loss=2.0)
>>> other = Figures(step=7, seconds={"data": 0.4, "optimizer": 0.1}, waited={"tp": 0.1}, work_s=3.0, memory_bytes=60.0)
>>> sums = [a + b for a, b in zip(pack(mine, 0, 2), pack(other, 1, 2), strict=True)]
>>> told = unpack(sums, 2)
>>> round(told["data_s"], 3), told["data_s_max"], told["wait_s"], told["slowest"], told["memory_bytes"], told["loss_max"]
(0.3, 0.4, {'tp': 0.3}, {'rank': 1, 'work_s': 3.0}, 80, 2.0)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurmtrain.train.phases import PHASES

AXES = ("tp", "cp", "pp", "dp_cp", "shard", "replicate", "ends")
"""Names under which waits are counted: those of `parallel.axes`."""
_SLOTS = ("data_s", "work_s", "memory_bytes", "loss")
_NONE = -1.0
"""In the slot of a loss: this rank has none (a loss is never negative)."""
_MEANS = 1 + len(PHASES) + 1 + len(AXES) + 2


@dataclass(frozen=True)
class Figures:
    """What one rank measured in one step. `loss`: mean over its own tokens, where it has any.

    `work_s`: passes and update without the waits for others, which is what makes a rank slow; `waited`: by axis; `bubble`: the share
    of a pipeline's passes in which the rank had nothing to do.
    """

    step: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    waited: Mapping[str, float] = field(default_factory=dict)
    work_s: float = 0.0
    memory_bytes: float = 0.0
    loss: float | None = None
    bubble: float | None = None


def pack(mine: Figures | None, rank: int, size: int) -> list[float]:
    """The figures as numbers to be added up; of the same length always, all zero where there are none yet."""
    if mine is None:
        return [0.0] * (_MEANS + len(_SLOTS) * size)
    means = [1.0, *(mine.seconds.get(phase, 0.0) for phase in PHASES), mine.work_s]
    means += [mine.waited.get(axis, 0.0) for axis in AXES]
    means += [0.0, 0.0] if mine.bubble is None else [1.0, mine.bubble]
    loss = _NONE if mine.loss is None else mine.loss
    own = (mine.seconds.get("data", 0.0), mine.work_s, mine.memory_bytes, loss)
    return means + [number if at == rank else 0.0 for number in own for at in range(size)]


def unpack(sums: Sequence[float], size: int) -> dict[str, Any]:
    """Means and largest values over the ranks, as they stand in an event; empty where no rank had figures."""
    count, *means = sums[:_MEANS]
    if not count:
        return {}
    phases, (work, *waits) = means[: len(PHASES)], means[len(PHASES) : -2]
    told: dict[str, Any] = {f"{phase}_s": _short(total / count) for phase, total in zip(PHASES, phases, strict=True) if total}
    told["work_s"] = _short(work / count)
    told["wait_s"] = {axis: _short(total / count) for axis, total in zip(AXES, waits, strict=True) if total}
    with_bubble, bubble = means[-2:]
    if with_bubble:
        told["bubble"] = _short(bubble / with_bubble)
    slots = {name: sums[_MEANS + i * size : _MEANS + (i + 1) * size] for i, name in enumerate(_SLOTS)}
    slowest = max(range(size), key=lambda rank: slots["work_s"][rank])
    told["data_s_max"] = _short(max(slots["data_s"]))
    told["slowest"] = {"rank": slowest, "work_s": _short(slots["work_s"][slowest])}
    told["memory_bytes"] = int(max(slots["memory_bytes"]))
    if max(slots["loss"]) >= 0:
        told["loss_max"] = max(slots["loss"])
    return told


def _short(seconds: float) -> float:
    return round(seconds, 6)
