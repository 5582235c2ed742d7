"""The mesh as this rank's collectives take it: an Axis for each name, None where the rank is alone on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch.distributed as dist

from slurmtrain.parallel.axis import Axis, Meter


class Mesh(Protocol):
    """Where this rank stands on each axis and flattened name of `runtime.mesh`."""

    def size(self, name: str) -> int: ...

    def index(self, name: str) -> int: ...

    def group(self, name: str) -> dist.ProcessGroup | None:
        """None where this rank is alone."""


@dataclass(frozen=True)
class Axes:
    """`dp_cp` = `shard` x `replicate`. `data_index`: which samples of a step are this rank's."""

    tp: Axis | None
    cp: Axis | None
    pp: Axis | None
    dp_cp: Axis | None
    shard: Axis | None
    replicate: Axis | None
    ends: Axis | None
    data_index: int
    meter: Meter


def axes_of(mesh: Mesh, meter: Meter) -> Axes:
    """All names share one meter, each under its own."""

    def axis(name: str) -> Axis | None:
        group = mesh.group(name)
        return None if group is None else Axis(name, group, mesh.size(name), mesh.index(name), meter)

    names = ("tp", "cp", "pp", "dp_cp", "shard", "replicate", "ends")
    return Axes(**{name: axis(name) for name in names}, data_index=mesh.index("data"), meter=meter)
