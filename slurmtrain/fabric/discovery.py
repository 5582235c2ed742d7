"""What a rank finds out about its place: node, host, NVLink fabric (NVML) and block (Slurm's topology). No torch, no MPI.

NVML is used where nvidia-ml-py is installed and a driver answers; GPUs of one NVLink domain then report the same cluster UUID
and clique (NVML API reference, nvmlDeviceGetGpuFabricInfoV). Elsewhere Slurm's SLURM_TOPOLOGY_ADDR names the block.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

_FABRIC_COMPLETED = 3
"""NVML_GPU_FABRIC_STATE_COMPLETED: the GPU has joined its fabric, and UUID and clique are valid."""
_FABRIC_INFO_V2 = 0x02000024
"""nvmlGpuFabricInfo_v2: version 2 in the high byte, the size of the structure below in the others."""


class FabricInfo(ctypes.Structure):
    """nvmlGpuFabricInfo_v2_t of nvml.h (the Python package changed its own class between releases)."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("uuid", ctypes.c_uint8 * 16),
        ("status", ctypes.c_uint),
        ("clique", ctypes.c_uint32),
        ("state", ctypes.c_uint8),
        ("health_mask", ctypes.c_uint32),
    )


@dataclass(frozen=True)
class DomainAnswer:
    """What one rank found. Empty texts: not known there.

    `fabric`: UUID and clique of its GPU's NVLink fabric as "UUID.CLIQUE"; `block`: name of the node's block in Slurm.
    """

    node: str
    local_rank: int
    hostname: str = ""
    fabric: str = ""
    block: str = ""


def discover(environ: Mapping[str, str], *, node: str, local_rank: int, hostname: str, nvml: ModuleType | None = None) -> DomainAnswer:
    """The answer of this rank from its environment, and from NVML where it is given (`load_nvml`)."""
    fabric = fabric_of(nvml, environ, local_rank) if nvml is not None else ""
    return DomainAnswer(node, local_rank, hostname, fabric, block_of(environ, node))


def block_of(environ: Mapping[str, str], node: str) -> str:
    """Block part of SLURM_TOPOLOGY_ADDR; empty without topology/block or for a node outside any block.

    >>> block_of({"SLURM_TOPOLOGY_ADDR": "b3.n5", "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node"}, "n5")
    'b3'
    >>> block_of({"SLURM_TOPOLOGY_ADDR": "spine.leaf1.n5", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"}, "n5")
    ''
    """
    address = environ.get("SLURM_TOPOLOGY_ADDR", "")
    kinds = environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "block.node").split(".")
    parts = address.removesuffix(f".{node}").split(".") if address.endswith(f".{node}") else []
    return parts[-1] if parts and len(kinds) > 1 and kinds[-2:] == ["block", "node"] else ""


def load_nvml() -> ModuleType | None:
    """An initialised pynvml, or None where the package, the library or the driver is missing."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 NVMLError's class is inside the module that may be missing
        return None
    return nvml


def fabric_of(nvml: Any, environ: Mapping[str, str], local_rank: int) -> str:
    """UUID and clique of this rank's GPU as "UUID.CLIQUE"; empty outside a fabric between nodes (all-zero UUID) or where NVML is silent."""
    info = FabricInfo(version=_FABRIC_INFO_V2)
    try:
        nvml.nvmlDeviceGetGpuFabricInfoV(_handle(nvml, environ, local_rank), ctypes.byref(info))
    except (nvml.NVMLError, AttributeError):  # an old package has no such function
        return ""
    if info.state != _FABRIC_COMPLETED or info.status != 0 or not any(info.uuid):
        return ""
    return f"{bytes(info.uuid).hex()}.{info.clique}"


def _handle(nvml: Any, environ: Mapping[str, str], local_rank: int) -> Any:
    """NVML's handle of the GPU that this rank will use: NVML itself does not look at CUDA_VISIBLE_DEVICES."""
    visible = [v for v in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if v]
    mine = visible[local_rank if len(visible) > local_rank else 0] if visible else str(local_rank)
    if mine.isdigit():
        # Slurm's device cgroup hides the others and counts from 0 again; a number past the end is such a one.
        return nvml.nvmlDeviceGetHandleByIndex(int(mine) % max(1, nvml.nvmlDeviceGetCount()))
    return nvml.nvmlDeviceGetHandleByUUID(mine)
