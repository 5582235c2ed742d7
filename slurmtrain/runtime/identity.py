"""Which rank of the world a process is: node, local rank, and the check against what attempt.json promised.

World rank is neither SLURM_PROCID nor MPI's own: srun sorts nodes by itself, and a spare may stand in for a node. The order of
`nodes` in attempt.json decides.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurmtrain.errors import LaunchError
from slurmtrain.fabric.placement import world_rank
from slurmtrain.rundir import AttemptDir


@dataclass(frozen=True)
class AttemptStart:
    """What attempt.json says about the world: nodes in its order, and tasks on each."""

    nodes: tuple[str, ...]
    tasks_per_node: int


@dataclass(frozen=True)
class Claim:
    """What a process says about itself; `local_rank` None: its launcher does not tell."""

    node: str
    local_rank: int | None
    hostname: str = ""


def attempt_number(environ: Mapping[str, str]) -> int:
    """SLURMTRAIN_ATTEMPT. Raises LaunchError: a rank is started by the supervisor, not by hand."""
    text = environ.get("SLURMTRAIN_ATTEMPT", "")
    if not text.isdigit():
        raise LaunchError(f"SLURMTRAIN_ATTEMPT = {text!r} is not the number of an attempt: start ranks by `slurmtrain run` or `submit`")
    return int(text)


def read_attempt(attempt: AttemptDir) -> AttemptStart:
    """Raises LaunchError when attempt.json is not there or not whole."""
    try:
        raw = json.loads(attempt.attempt_json.read_bytes())
        return AttemptStart(tuple(raw["nodes"]), int(raw["tasks_per_node"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LaunchError(f"{attempt.attempt_json}: cannot be read as the start of attempt {attempt.number}: {error!r}") from error


def claim(environ: Mapping[str, str], launcher: str, hostname: str) -> Claim:
    """Node: SLURMTRAIN_NODE, else (under srun) SLURMD_NODENAME, else the host name; local rank: SLURM_LOCALID under srun.

    Slurm's variables count only under srun: a batch shell, from which mpiexec may run, has its own.
    """
    slurm = environ if launcher == "srun" else {}
    local = slurm.get("SLURM_LOCALID", "")
    node = environ.get("SLURMTRAIN_NODE") or slurm.get("SLURMD_NODENAME") or hostname
    return Claim(node, int(local) if local.isdigit() else None, hostname)


def local_ranks(claims: Sequence[Claim]) -> list[int]:
    """Local rank of each process: as claimed, else its place among those of the same node (in the launcher's order)."""
    seen: Counter[str] = Counter()
    found = []
    for one in claims:
        found.append(seen[one.node] if one.local_rank is None else one.local_rank)
        seen[one.node] += 1
    return found


def world_ranks(claims: Sequence[Claim], start: AttemptStart) -> list[int]:
    """World rank of each process, in the launcher's order.

    Raises LaunchError when nodes are missing or foreign, a node has too few or too many ranks, or two claim one place.
    """
    found = Counter(one.node for one in claims)
    foreign = [node for node in found if node not in start.nodes]
    missing = [node for node in start.nodes if node not in found]
    if foreign or missing:
        faults = [f"ranks run on {_names(foreign)}"] * bool(foreign) + [f"no rank runs on {_names(missing)}"] * bool(missing)
        raise LaunchError(f"the world was promised on {_names(start.nodes)}, but {' and '.join(faults)}")
    uneven = [f"{node} has {count}" for node, count in found.items() if count != start.tasks_per_node]
    if uneven:
        raise LaunchError(f"each node was promised {start.tasks_per_node} ranks: {', '.join(uneven[:8])}")
    ranks = [world_rank(start.nodes, start.tasks_per_node, c.node, local) for c, local in zip(claims, local_ranks(claims), strict=True)]
    twice = [rank for rank, count in Counter(ranks).items() if count > 1]
    if twice:
        mine = [one for one, rank in zip(claims, ranks, strict=True) if rank == twice[0]]
        hosts = ", ".join(one.hostname or "?" for one in mine)
        raise LaunchError(f"{len(mine)} ranks claim local rank {mine[0].local_rank} of node {mine[0].node} (hosts {hosts})")
    return ranks


def _names(nodes: Sequence[str], limit: int = 8) -> str:
    return ", ".join(nodes[:limit]) + (f" and {len(nodes) - limit} more" if len(nodes) > limit else "")
