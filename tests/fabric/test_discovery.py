"""What a node says about its NVLink domain, on recorded answers of Slurm and on NVML's own structure."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from slurmtrain.fabric import discovery
from slurmtrain.fabric.discovery import DomainAnswer, FabricInfo, block_of, discover, fabric_of


class NvmlError(Exception):
    """Stands for pynvml.NVMLError."""


def nvml_with(fabrics: dict[int, tuple[bytes, int, int]]) -> SimpleNamespace:
    """A pynvml whose GPU i reports (UUID, clique, state); a GPU that is not listed raises."""

    def info(handle: int, pointer: object) -> None:
        if handle not in fabrics:
            raise NvmlError
        target = ctypes.cast(pointer, ctypes.POINTER(FabricInfo)).contents
        uuid, target.clique, target.state = fabrics[handle]
        target.uuid[:] = list(uuid)

    return SimpleNamespace(
        NVMLError=NvmlError,
        nvmlDeviceGetCount=lambda: 4,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByUUID=lambda uuid: {"GPU-aa": 0, "GPU-bb": 1}[uuid],
        nvmlDeviceGetGpuFabricInfoV=info,
    )


@pytest.mark.parametrize(
    ("environ", "node", "block"),
    [
        # Slurm 24.11, topology/block: a node of a block, and one of none; topology/tree; no topology; before 24.11.
        ({"SLURM_TOPOLOGY_ADDR": "b3.n5", "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node"}, "n5", "b3"),
        ({"SLURM_TOPOLOGY_ADDR": "b3.n5"}, "n5", "b3"),
        ({"SLURM_TOPOLOGY_ADDR": "n5", "SLURM_TOPOLOGY_ADDR_PATTERN": "node"}, "n5", ""),
        ({"SLURM_TOPOLOGY_ADDR": "spine.leaf1.n5", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"}, "n5", ""),
        ({"SLURM_TOPOLOGY_ADDR": "leaf1.n5", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.node"}, "n5", ""),
        ({"SLURM_TOPOLOGY_ADDR": "b1.n5.pod.example"}, "n5.pod.example", "b1"),
        ({}, "n5", ""),
    ],
)
def test_the_block_is_read_from_slurms_topology_address(environ, node, block):
    assert block_of(environ, node) == block


def test_the_structure_is_nvmls():
    assert ctypes.sizeof(FabricInfo) == discovery._FABRIC_INFO_V2 & 0xFFFFFF


UUID = bytes([0, 1, 0, 2]) + bytes(12)


@pytest.mark.parametrize(
    ("fabrics", "visible", "local_rank", "found"),
    [
        ({0: (UUID, 7, 3)}, "", 0, "00010002000000000000000000000000.7"),
        ({2: (UUID, 7, 3)}, "2,3", 0, "00010002000000000000000000000000.7"),
        ({1: (UUID, 7, 3)}, "GPU-aa,GPU-bb", 1, "00010002000000000000000000000000.7"),
        ({3: (UUID, 7, 3)}, "3", 2, "00010002000000000000000000000000.7"),
        ({0: (bytes(16), 0, 3)}, "", 0, ""),  # an HGX node of its own: no fabric between nodes
        ({0: (UUID, 7, 2)}, "", 0, ""),  # still joining
        ({}, "", 0, ""),  # NVML refuses
    ],
)
def test_the_fabric_is_uuid_and_clique_of_this_ranks_gpu(fabrics, visible, local_rank, found):
    assert fabric_of(nvml_with(fabrics), {"CUDA_VISIBLE_DEVICES": visible}, local_rank) == found


def test_a_package_without_the_function_says_nothing():
    nvml = nvml_with({})
    del nvml.nvmlDeviceGetGpuFabricInfoV
    assert fabric_of(nvml, {}, 0) == ""


def test_without_nvml_the_environment_alone_answers():
    environ = {"SLURM_TOPOLOGY_ADDR": "b3.n5", "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node"}
    assert discover(environ, node="n5", local_rank=2, hostname="host5") == DomainAnswer("n5", 2, "host5", "", "b3")
