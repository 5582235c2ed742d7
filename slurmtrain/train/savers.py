"""Which saver a job asks for, and the ranks that share a writer with this one."""

from __future__ import annotations

from slurmtrain.checkpoint.forkserver import ForkServer
from slurmtrain.checkpoint.group import Group, SoloGroup
from slurmtrain.checkpoint.local_save import LocalSaves
from slurmtrain.checkpoint.saver import Saver, Terms, shares
from slurmtrain.checkpoint.staged import AsyncSaver
from slurmtrain.checkpoint.state import pinned
from slurmtrain.checkpoint.sync import SyncSaver
from slurmtrain.clock import Clock
from slurmtrain.config.job import CheckpointConfig, JobConfig
from slurmtrain.config.site import SiteConfig
from slurmtrain.rundir import RunDir
from slurmtrain.runtime.world import World
from slurmtrain.store.retention import RetentionPolicy
from slurmtrain.train.group import TorchGroup


def make_saver(
    run: RunDir,
    job: JobConfig,
    site: SiteConfig,
    world: World,
    group: Group,
    *,
    clock: Clock,
    forkserver: ForkServer | None,
    local: LocalSaves | None = None,
) -> Saver:
    """Collective. `local`: saves on the nodes' own disks, where they take part: these are written from an image in memory in any mode."""
    wish = job.checkpoint
    terms = Terms(run, retention_of(wish), site.storage, allow_nonfinite=wish.allow_nonfinite, timeout_s=float(wish.timeout_s))
    mates = _mates(world, wish.writers_per_node or site.storage.writers_per_node)
    register = pinned if world.device.type == "cuda" else None
    if wish.mode == "sync" and local is None:
        return SyncSaver(terms, group, mates, register=register, clock=clock)
    waits = wish.mode == "sync"
    return AsyncSaver(terms, group, mates, server=forkserver, register=register, clock=clock, local=local, waits=waits)


def retention_of(wish: CheckpointConfig) -> RetentionPolicy:
    """What is kept."""
    return RetentionPolicy(wish.keep, wish.keep_every_steps, wish.keep_every_hours, wish.keep_best, wish.best_metric)


def _mates(world: World, writers_per_node: int | None) -> Group:
    """The ranks that write one file together. Every rank makes the groups that it is in alone."""
    everybody = shares(world.local_size, writers_per_node, len(world.nodes))
    mine = next(ranks for ranks in everybody if world.rank in ranks)
    return SoloGroup() if len(mine) == 1 else TorchGroup(world.timeout.total_seconds(), mine)
