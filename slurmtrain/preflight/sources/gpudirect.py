"""What lets network cards reach GPU memory: the module nvidia-peermem (nv_peer_mem before it), or the kernel's dma-buf.

dma-buf needs Linux 5.12 and NVIDIA's open kernel modules (NVIDIA GPU Operator's documentation, GPUDirect RDMA).
"""

from __future__ import annotations

from slurmtrain.preflight.machine import Machine
from slurmtrain.preflight.parts import Facts, Source
from slurmtrain.preflight.request import Request

MODULES = ("nvidia_peermem", "nv_peer_mem")


def asked(request: Request) -> bool:
    """Whether the site expects it."""
    return request.on_gpus and "GPUDirect" in request.site.preflight.expect


def look(machine: Machine, request: Request) -> Facts:  # noqa: ARG001 a source's signature
    driver = machine.text_or("/proc/driver/nvidia/version")
    return {
        "modules": [name for name in MODULES if machine.path(f"/sys/module/{name}").is_dir()],
        "open_driver": "Open Kernel Module" in driver,
        "kernel": machine.text_or("/proc/sys/kernel/osrelease"),
    }


SOURCE = Source("gpudirect", look, "the kernel does not answer: have the node rebooted", asked)
