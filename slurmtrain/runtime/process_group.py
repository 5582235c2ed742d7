"""The default process group: device, store and backends. The first module of a rank that imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from slurmtrain.config.site import SiteConfig
from slurmtrain.errors import ConfigError, SlurmtrainError, one_line
from slurmtrain.fabric.rendezvous import Endpoint
from slurmtrain.runtime.comm import Comm, raise_together
from slurmtrain.runtime.device import check_distinct, gpu_index

TCPStore: Any = dist.TCPStore  # type: ignore[attr-defined]
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}


def take_device(site: SiteConfig, comm: Comm, environ: Mapping[str, str], *, node: str, local_rank: int, local_size: int) -> torch.device:
    """Device of this rank, made current. Collective: one rank without its GPU makes all raise its ConfigError."""
    if site.device == "cpu":
        return torch.device("cpu")
    error: SlurmtrainError | None = None
    index = 0
    try:
        seen = environ.get("CUDA_VISIBLE_DEVICES", "")
        index = gpu_index(torch.cuda.device_count(), local_rank, local_size, node=node, seen=seen)
    except ConfigError as refused:
        error = refused
    raise_together(comm, error)
    check_distinct(comm.allgather((node, str(torch.cuda.get_device_properties(index).uuid))))
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def open_process_group(comm: Comm, endpoint: Endpoint, device: torch.device, *, start_timeout_s: float, timeout: timedelta) -> None:
    """Rank 0 opens a store on a free port of `endpoint` and tells the others over MPI; all form the default process group.

    Raises ConnectionError when a rank cannot reach the store.
    """
    patience = timedelta(seconds=start_timeout_s)
    store = None
    if comm.rank == 0:
        store = TCPStore(endpoint.address, 0, comm.size, is_master=True, wait_for_workers=False, timeout=patience)
    address, port = comm.bcast((endpoint.address, store.port if store is not None else 0))
    if store is None:
        store = _reach(address, port, comm.size, patience)
    dist.init_process_group(
        BACKENDS[device.type],
        store=store,
        rank=comm.rank,
        world_size=comm.size,
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )


def _reach(address: str, port: int, size: int, patience: timedelta) -> Any:
    try:
        return TCPStore(address, port, size, is_master=False, timeout=patience)
    except RuntimeError as error:
        raise ConnectionError(
            f"rank 0 offers its store at {address} port {port}, which cannot be reached from here: is fabric.rendezvous_interface of "
            f"the site the network between nodes? ({one_line(str(error), 100)})"
        ) from error
