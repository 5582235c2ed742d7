"""What a run needs of its nodes besides their health: room for the next checkpoint, and packages. For a preflight's request."""

from __future__ import annotations

from dataclasses import dataclass, replace

from slurmtrain.config.job import JobConfig
from slurmtrain.config.optimizer import state_bytes
from slurmtrain.config.plan import Plan
from slurmtrain.config.site import SiteConfig
from slurmtrain.errors import CheckpointError
from slurmtrain.preflight.request import RANKS_PACKAGES, Request
from slurmtrain.resilience.ranks import Setup
from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import folders_present
from slurmtrain.store.scratch import KEEP
from slurmtrain.store.space import Need
from slurmtrain.store.verify import read_manifest


@dataclass(frozen=True)
class Needs:
    """`checkpoint`: the next one; `local_bytes`: what checkpoints on a node's own disk take there at most; `packages` of the ranks."""

    checkpoint: Need
    local_bytes: int
    packages: tuple[str, ...]


def needs_of(setup: Setup) -> Needs:
    """Of a script of the user's nothing is known but what it was told to be started with."""
    job, plan = setup.job, setup.plan
    if job.entry is not None:
        return Needs(Need(0), 0, ("mpi4py",) if job.entry.mpi else ())
    need = (_newest(setup.run) if job.preflight != "off" else None) or _estimate(job, plan, setup.site)
    return Needs(need, local_bytes(need.bytes, plan.nodes) if job.checkpoint.local else 0, RANKS_PACKAGES)


def with_needs(request: Request, setup: Setup) -> Request:
    """The request with what the run needs."""
    needs = needs_of(setup)
    return replace(
        request,
        need_bytes=needs.checkpoint.bytes,
        need_files=needs.checkpoint.files,
        local_bytes=needs.local_bytes,
        packages=needs.packages,
        environment=setup.job.environment,
    )


def local_bytes(checkpoint_bytes: int, nodes: int) -> int:
    """Of one node: those that are kept and the one that is being made, each node's own files and those of a partner.

    >>> local_bytes(1000, 4), local_bytes(1000, 1)
    (1500, 3000)
    """
    return (KEEP + 1) * min(2, nodes) * -(-checkpoint_bytes // nodes)


def _newest(run: RunDir) -> Need | None:
    """What the newest checkpoint that can be read takes: the next one is of the same state."""
    try:
        for _, folder in folders_present(run.checkpoints):
            try:
                manifest = read_manifest(folder)
            except CheckpointError:
                continue
            return Need(manifest.total_bytes, len(manifest.files) + 1)
    except OSError:
        return None  # the nodes' own look at the folder tells
    return None


def _estimate(job: JobConfig, plan: Plan, site: SiteConfig) -> Need:
    """Before there is one: weights and the optimiser's state in fp32, a file for each writer, the manifest."""
    writers = job.checkpoint.writers_per_node or site.storage.writers_per_node or plan.tasks_per_node
    return Need(state_bytes(job), plan.nodes * min(writers, plan.tasks_per_node) + 1)
