"""Which rank of the world a process is, and what a script expects to find in its environment: torchrun's variables.

Names and values as torch 2.13 sets them (torch/distributed/elastic/agent/server/local_elastic_agent.py, `_start_workers`; documented
under "torchrun: Environment Variables"); NODE_RANK besides, which Lightning reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from slurmtrain.errors import LaunchError
from slurmtrain.fabric.placement import world_rank
from slurmtrain.rundir import AttemptDir

_OF_MPI = ("PMI_", "PMIX_", "PMI2_", "HYDRA_", "HYDI_", "MPI_LOCAL", "MPIR_", "OMPI_")


@dataclass(frozen=True)
class Place:
    """A rank's. `nodes`: how many there are; `node_index`: of its node in the order of the world; `mark`: when its attempt began."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    node: str
    node_index: int
    nodes: int
    mark: str = ""


def attempt_number(environ: Mapping[str, str]) -> int:
    """SLURMTRAIN_ATTEMPT. Raises LaunchError: a rank is started by the supervisor, not by hand."""
    text = environ.get("SLURMTRAIN_ATTEMPT", "")
    if not text.isdigit():
        raise LaunchError(f"SLURMTRAIN_ATTEMPT = {text!r} is not the number of an attempt: start ranks by `slurmtrain run` or `submit`")
    return int(text)


def find_place(attempt: AttemptDir, environ: Mapping[str, str], *, node: str, launcher: str) -> Place:
    """The place of this process among what attempt.json promises. Raises LaunchError where the two do not fit.

    Under srun Slurm tells the local rank; mpiexec starts the ranks of a node in a row.
    """
    try:
        raw = json.loads(attempt.attempt_json.read_bytes())
        nodes, tasks, began = tuple(map(str, raw["nodes"])), int(raw["tasks_per_node"]), float(raw["t_start"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LaunchError(f"{attempt.attempt_json}: cannot be read as the start of attempt {attempt.number}: {error!r}") from error
    name = "SLURM_LOCALID" if launcher == "srun" else "PMI_RANK"
    told = environ.get(name, "")
    if not told.isdigit():
        raise LaunchError(f"{name} = {told!r}: this process does not know which rank of node {node} it is")
    local = int(told) if launcher == "srun" else int(told) % tasks
    rank = world_rank(nodes, tasks, node, local)
    return Place(rank, len(nodes) * tasks, local, tasks, node, rank // tasks, len(nodes), f"{began:.6f}")


def torchrun_variables(place: Place, *, address: str, port: int, run_id: str, attempt: int, more: int) -> dict[str, str]:
    """What torchrun's agent sets for a worker. `more`: restarts that the run may still make without progress."""
    of_world = dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE"), place.world) | dict.fromkeys(("RANK", "ROLE_RANK"), place.rank)
    of_node = {"LOCAL_RANK": place.local_rank, "LOCAL_WORLD_SIZE": place.local_world, "GROUP_WORLD_SIZE": place.nodes}
    of_node |= dict.fromkeys(("GROUP_RANK", "NODE_RANK"), place.node_index)
    restarts = attempt - 1
    return {
        **{name: str(value) for name, value in {**of_world, **of_node}.items()},
        "ROLE_NAME": "default",
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(restarts + more),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def without_mpi(environ: Mapping[str, str]) -> dict[str, str]:
    """Nothing by which a script that never heard of MPI would take itself for one of its ranks."""
    return {name: value for name, value in environ.items() if not name.startswith(_OF_MPI)}
