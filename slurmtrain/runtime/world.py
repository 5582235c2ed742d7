"""What a rank knows about the world it is in."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from slurmtrain.config.plan import Plan
from slurmtrain.runtime.comm import Comm
from slurmtrain.telemetry.heartbeat import Heart, SilentHeart

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
    """What must be known about a rank to write how it ended. The loop keeps `step` up to date: the last step completed.

    `heart`: tells the node's agent that it lives.
    """

    rank: int
    node: str
    step: int = 0
    heart: Heart = field(default_factory=SilentHeart)

    def take_seat(self, rank: int, node: str) -> None:
        """The rank's place in the world is known."""
        self.rank, self.node = rank, node
        self.heart.become(rank)
