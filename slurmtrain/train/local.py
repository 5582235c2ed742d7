"""The nodes' own disks, as the ranks of an attempt open them for checkpoints: whose folder it is, what is whole there, who saves there.

A disk that cannot be used is no reason not to train: a note says so, and this attempt saves to the run folder alone, as often as it
would have otherwise.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from slurmtrain.checkpoint.group import Failure, Group, captured, on_rank_0
from slurmtrain.checkpoint.local_load import LocalLoads, LocalRival, PartsOf
from slurmtrain.checkpoint.local_save import Ground, LocalSaves, Seat
from slurmtrain.checkpoint.peers import PeerGroup
from slurmtrain.config.expand import expand
from slurmtrain.config.job import JobConfig
from slurmtrain.config.site import SiteConfig
from slurmtrain.errors import CheckpointError, ConfigError
from slurmtrain.resilience.ownership import check_owner
from slurmtrain.rundir import RunDir
from slurmtrain.runtime.world import World
from slurmtrain.store.local import Rules, make_rules, read_rules
from slurmtrain.store.scratch import LocalCandidate, LocalDir, leave_node, leave_probe, local_dir, open_local, probes, remove_probe


@dataclass(frozen=True)
class Local:
    """`found`: checkpoints that are whole, newest first; `saves`: None where the job saves to the run folder alone."""

    ground: Ground
    loads: LocalLoads
    found: tuple[LocalCandidate, ...]
    saves: LocalSaves | None

    def rival(self, group: Group, parts_of: PartsOf) -> LocalRival:
        """What `restore` tries before the run folder."""
        return LocalRival(self.loads, group, parts_of, self.found)

    def leave(self) -> None:
        """The run is finished: remove what it has on this rank's node, and its word of it."""
        if self.ground.seat.first:
            if self.ground.seat.node == 0:
                with suppress(OSError):
                    self.ground.run.local_json.unlink(missing_ok=True)
            leave_node(self.ground.local)


@dataclass(frozen=True)
class Opened:
    """`local` is None where no node's disk takes part; `notes`: why, where the job wants it."""

    local: Local | None = None
    notes: tuple[str, ...] = ()


def open_nodes(
    run: RunDir, job: JobConfig, site: SiteConfig, world: World, *, group: PeerGroup, make_group: Callable[[float], PeerGroup]
) -> Opened:
    """Collective. `make_group`: a group of all ranks with a time limit in seconds, collective, too.

    A job that does not save to nodes' disks any more still goes on from there. Raises ConfigError for a scratch folder that cannot be
    filled in, or that is the same on two nodes; CheckpointError where the run folder cannot be read.
    """
    wants = job.checkpoint.local
    rules: Rules | None = on_rank_0(group, lambda: make_rules(run) if wants else read_rules(run))
    if rules is None or site.paths.scratch is None:
        return Opened()
    seat = Seat(world.nodes, world.node_index, world.local_rank, world.local_size)
    made = captured(lambda: _folder(run, site, rules, world.attempt, seat))
    if (why := _first_failure(group, seat, made)) is not None:
        if issubclass(why.type, ConfigError):
            raise why.error()
        return Opened(notes=(f"checkpoint.local: {why.message}: this attempt saves to the run folder alone",) if wants else ())
    assert isinstance(made, LocalDir)
    if wants:
        _check_apart(group, seat, made)
    seconds = float(job.checkpoint.timeout_s)
    ground = Ground(run, made, seat, world.attempt, seconds, lambda: check_owner(run, world.attempt))
    loads = LocalLoads(group, ground, rules)
    found = tuple(loads.look())
    saves = LocalSaves(ground, lambda: make_group(2 * seconds + 60), loads.kept, (one.step for one in found)) if wants else None
    return Opened(Local(ground, loads, found, saves))


def _folder(run: RunDir, site: SiteConfig, rules: Rules, attempt: int, seat: Seat) -> LocalDir:
    """The run's folder on this node, ready for use; the first rank of a node makes it."""
    assert site.paths.scratch is not None
    local = local_dir(expand(site.paths.scratch, os.environ, where="site", key="paths.scratch"), run, rules)
    if seat.first:
        try:
            open_local(local, run, rules, attempt)
        except OSError as error:
            raise CheckpointError(f"{error.filename or local.path}: {error.strerror or error}") from error
    return local


def _first_failure(group: Group, seat: Seat, mine: object) -> Failure | None:
    """Of any rank, the same on all; its node is named."""
    answers = group.gather(mine if isinstance(mine, Failure) else None)
    found = None
    if answers is not None:
        found = next((Failure(f"{seat.name_of(i)}: {one.message}", one.kind) for i, one in enumerate(answers) if one is not None), None)
    told: Failure | None = group.broadcast(found)
    return told


def _check_apart(group: Group, seat: Seat, local: LocalDir) -> None:
    """Raise ConfigError where two nodes share the folder: a copy there would be none. Each leaves a file, and looks for others'."""
    token = group.broadcast(secrets.token_hex(6))
    if seat.first:
        leave_probe(local, token, seat.node)
    group.barrier()
    seen = probes(local, token) if seat.first else []
    group.barrier()
    if seat.first:
        remove_probe(local, token, seat.node)
    everybody = group.gather(seen)
    shared = group.broadcast(None if everybody is None else next((nodes for nodes in everybody if len(nodes) > 1), None))
    if shared:
        names = " and ".join(seat.nodes[node] for node in shared[:2])
        problem = f"is the same folder on {names}: give one on each node's own disk, or leave checkpoint.local out"
        raise ConfigError(problem, where="site", key="paths.scratch", value=str(local.path.parent.parent.parent))
