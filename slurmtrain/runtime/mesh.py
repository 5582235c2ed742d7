"""The named mesh of a world, with process groups whose every collective ends at the site's time-out.

The groups are made here, not by `init_device_mesh`: torch gives subgroups its own default time-outs (10 and 30 minutes), not
the world's. Axes of size 1 share one group of this rank alone, and `group` says None for them: alone, nothing to communicate.
Names besides the axes, each a flattened product:

| name | axes | who |
|---|---|---|
| `data` | dp, ep | ranks that read different samples (plan.dp of them) |
| `dp_cp` | dp, ep, cp | ranks whose gradients of one parameter are summed |
| `shard` | part of dp_cp | ranks that share one copy of what `plan.dp_mode` shards |
| `replicate` | rest of dp_cp | ranks that hold the same shard |
| `ends` | part of pp | the ranks of the first and the last pipeline stage |
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from slurmtrain.config.plan import Plan
from slurmtrain.fabric.placement import coordinates, end_groups, groups, replicate_groups, shard_groups
from slurmtrain.runtime.world import World

FLATTENED: dict[str, tuple[str, ...]] = {"data": ("dp", "ep"), "dp_cp": ("dp", "ep", "cp")}


@dataclass(frozen=True)
class Axis:
    """One name of the mesh, seen from this rank: world ranks of its group, ascending, and the group (of one rank: this rank alone)."""

    ranks: tuple[int, ...]
    process_group: dist.ProcessGroup


@dataclass(frozen=True)
class Mesh:
    """Axes by name. `device_mesh`: all five axes, slowest first."""

    device_mesh: DeviceMesh
    rank: int
    plan: Plan
    axes: dict[str, Axis]

    def size(self, name: str) -> int:
        """Number of ranks along an axis or a flattened name."""
        return len(self.axes[name].ranks)

    def index(self, name: str) -> int:
        """Place of this rank among them."""
        return self.axes[name].ranks.index(self.rank)

    def ranks(self, name: str) -> tuple[int, ...]:
        """World ranks of this rank's group, ascending."""
        return self.axes[name].ranks

    def group(self, name: str) -> dist.ProcessGroup | None:
        """Process group along a name; None where this rank is alone."""
        return self.axes[name].process_group if self.size(name) > 1 else None

    def coordinates(self) -> dict[str, int]:
        """Index on each of the five axes, fastest first."""
        return coordinates(self.plan, self.rank)

    def flat(self, name: str) -> DeviceMesh:
        """A one-dimensional DeviceMesh of a name, as FSDP2 takes it."""
        return DeviceMesh.from_group(self.axes[name].process_group, self.device_mesh.device_type, mesh_dim_names=(name,))


def build_mesh(plan: Plan, world: World) -> Mesh:
    """Mesh of a started world. Collective; all ranks make the same groups in the same order."""
    makers = _GroupMaker(world)
    slowest_first = tuple(reversed(plan.order))
    names = {**{axis: (axis,) for axis in slowest_first}, **FLATTENED}
    parts_of = {name: groups(plan, *parts) for name, parts in names.items()}
    parts_of |= {"shard": shard_groups(plan), "replicate": replicate_groups(plan), "ends": end_groups(plan)}
    axes = {name: makers.make(name, found) for name, found in parts_of.items()}
    shape = [plan.sizes()[axis] for axis in slowest_first]
    device_mesh = DeviceMesh.from_group(
        [axes[axis].process_group for axis in slowest_first],
        world.device.type,
        mesh=torch.arange(world.size, dtype=torch.int).reshape(shape),
        mesh_dim_names=slowest_first,
    )
    return Mesh(device_mesh, world.rank, plan, axes)


class _GroupMaker:
    """Makes each group once: names with the same ranks share it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._made: dict[tuple[tuple[int, ...], ...], dist.ProcessGroup] = {}

    def make(self, name: str, all_groups: list[list[int]]) -> Axis:
        key = tuple(tuple(group) for group in all_groups)
        mine = next(group for group in key if self._world.rank in group)
        if key not in self._made:
            self._made[key] = self._new(name, all_groups, list(mine))
        return Axis(mine, self._made[key])

    def _new(self, name: str, all_groups: list[list[int]], mine: list[int]) -> dist.ProcessGroup:
        if self._world.device.type == "cuda":
            # With a bound device NCCL splits the world's communicator, in which every rank takes part.
            made = dist.split_group(split_ranks=all_groups, timeout=self._world.timeout, group_desc=name)
        else:
            made = dist.new_group(mine, timeout=self._world.timeout, group_desc=name, use_local_synchronization=True)
        assert made is not None, f"rank {self._world.rank} is in no group of {name}"
        return made
