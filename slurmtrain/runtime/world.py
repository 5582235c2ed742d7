"""What a rank knows about the world it is in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from slurmtrain.config.plan import Plan
from slurmtrain.runtime.comm import Comm

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class World:
    """A started world. `nodes` in the order of the attempt: rank = node_index * local_size + local_rank.

    `comm`: MPI communicator whose ranks are the world ranks; `timeout`: of every collective of every process group.
    """

    rank: int
    size: int
    node: str
    node_index: int
    local_rank: int
    local_size: int
    device: torch.device
    comm: Comm
    plan: Plan
    nodes: tuple[str, ...]
    attempt: int
    timeout: timedelta


@dataclass
class Standing:
    """What must be known about a rank to write how it ended. The loop keeps `step` up to date: the last step completed."""

    rank: int
    node: str
    step: int = 0
