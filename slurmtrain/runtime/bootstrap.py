"""From a started process to a rank of a checked world: MPI, identity, NVLink domains, device, process group, in this order.

Everything that can be wrong with the start is found before torch is imported, so that N worlds of one end in seconds.
"""

from __future__ import annotations

import socket
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from slurmtrain.config.plan import Plan
from slurmtrain.config.site import SiteConfig
from slurmtrain.config.stored import plan_of_attempt, read_site
from slurmtrain.errors import ConfigError, LaunchError, SlurmtrainError
from slurmtrain.fabric.discovery import discover, load_nvml
from slurmtrain.fabric.rendezvous import Endpoint, choose_endpoint, default_interface, local_interfaces, read_routes, set_socket_interfaces
from slurmtrain.fabric.topology import check_domains
from slurmtrain.rundir import RunDir
from slurmtrain.runtime.comm import Comm, check_size, raise_together, start_mpi, started_tasks
from slurmtrain.runtime.identity import AttemptStart, attempt_number, claim, local_ranks, read_attempt, world_ranks
from slurmtrain.runtime.startup import Passed, unheard
from slurmtrain.runtime.world import Standing, World


def start_world(run: RunDir, environ: MutableMapping[str, str], standing: Standing | None = None, passed: Passed = unheard) -> World:
    """Join the world of attempt SLURMTRAIN_ATTEMPT of a run. `standing` learns rank and node as soon as they are known, `passed` the time.

    Raises LaunchError, PlacementError or ConfigError (on all ranks alike) where what is found is not what was promised.
    """
    attempt = attempt_number(environ)
    start = read_attempt(run.attempt(attempt))
    plan = plan_of_attempt(run, attempt)
    site = read_site(run.site_json)
    if (len(start.nodes), start.tasks_per_node) != (plan.nodes, plan.gpus_per_node):
        raise LaunchError(
            f"attempt {attempt} has {len(start.nodes)} nodes x {start.tasks_per_node} ranks, plan.json {plan.nodes} x {plan.gpus_per_node}"
        )
    return join_world(plan, site, start.nodes, environ, attempt=attempt, standing=standing, passed=passed)


def join_world(
    plan: Plan,
    site: SiteConfig,
    nodes: Sequence[str],
    environ: MutableMapping[str, str],
    *,
    attempt: int = 1,
    standing: Standing | None = None,
    passed: Passed = unheard,
) -> World:
    """Join a world on `nodes` (in its order) without a run folder. Collective; raises as `start_world` does."""
    passed("python")
    mpi = start_mpi()
    check_size(mpi.size, started_tasks(environ, site.launcher), plan, site, mpi.library)
    seat = take_seat(mpi, AttemptStart(tuple(nodes), plan.gpus_per_node), environ, site.launcher)
    if standing is not None:
        standing.take_seat(seat.comm.rank, seat.node)
    check_promise(seat, plan, environ)
    endpoint = find_endpoint(seat.comm, site, environ, one_node=plan.nodes == 1)
    passed("mpi")

    from slurmtrain.runtime.process_group import open_process_group, take_device  # noqa: PLC0415 torch only from here on

    passed("python")
    timeout = timedelta(seconds=site.timeouts.collective_timeout_s)
    device = take_device(site, seat.comm, environ, node=seat.node, local_rank=seat.local_rank, local_size=plan.gpus_per_node)
    open_process_group(seat.comm, endpoint, device, start_timeout_s=site.timeouts.start_timeout_s, timeout=timeout)
    passed("group")
    return World(
        rank=seat.comm.rank,
        size=seat.comm.size,
        node=seat.node,
        node_index=seat.comm.rank // plan.gpus_per_node,
        local_rank=seat.local_rank,
        local_size=plan.gpus_per_node,
        device=device,
        comm=seat.comm,
        plan=plan,
        nodes=tuple(nodes),
        attempt=attempt,
        timeout=timeout,
    )


@dataclass(frozen=True)
class Seat:
    """A process's place in the world; ranks of `comm` are world ranks."""

    comm: Comm
    node: str
    local_rank: int
    hostname: str


def take_seat(mpi: Comm, start: AttemptStart, environ: MutableMapping[str, str], launcher: str) -> Seat:
    """Tell all others who this is, and split MPI's world into the promised order. Raises LaunchError on all ranks."""
    mine = claim(environ, launcher, socket.gethostname())
    claims = mpi.allgather(mine)
    rank = world_ranks(claims, start)[mpi.rank]
    return Seat(mpi.split(rank), mine.node, local_ranks(claims)[mpi.rank], mine.hostname)


def check_promise(seat: Seat, plan: Plan, environ: MutableMapping[str, str]) -> None:
    """Compare the NVLink domains of the plan with what every rank finds. Raises PlacementError on all ranks."""
    found = discover(environ, node=seat.node, local_rank=seat.local_rank, hostname=seat.hostname, nvml=load_nvml())
    check_domains(plan, seat.comm.allgather(found))


def find_endpoint(comm: Comm, site: SiteConfig, environ: MutableMapping[str, str], *, one_node: bool) -> Endpoint:
    """Interface and address of this rank; sets the socket interfaces of NCCL and gloo. One rank without it makes all raise."""
    wanted = site.fabric.rendezvous_interface
    error: SlurmtrainError | None = None
    endpoint = Endpoint("", "")
    try:
        default = default_interface(read_routes())
        endpoint = choose_endpoint(wanted, local_interfaces(), one_node=one_node, default=default)
    except ConfigError as refused:
        error = refused
    raise_together(comm, error)
    set_socket_interfaces(environ, wanted, endpoint)
    return endpoint
