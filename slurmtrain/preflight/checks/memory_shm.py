"""Shared memory, /dev/shm: NCCL, MPI and data loaders meet there, and a container gives it 64 MiB unless it is told otherwise.

NCCL's user guide (Troubleshooting, Shared memory) asks for 1 GiB in a container, which is 128 MiB for each of 8 GPUs; MPI and gloo alone
take a few MiB a rank.
"""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.units import format_size

GPU_BYTES, CPU_BYTES = 128 << 20, 16 << 20
"""For each rank."""


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:
    shm, ranks = facts["shm"], request.gpus_per_node or request.site.node.gpus
    need = ranks * (GPU_BYTES if request.on_gpus else CPU_BYTES)
    if "error" in shm:
        yield Trouble(
            "fail", f"there is no /dev/shm: {shm['error']}", "mount a tmpfs there; a container needs --shm-size, or the host's /dev/shm"
        )
    elif shm["free_bytes"] < need:
        said = f"{format_size(shm['free_bytes'])} of {format_size(shm['total_bytes'])} free in /dev/shm, {format_size(need)} wanted"
        yield Trouble("fail", said, "remove what was left there, or make it larger (`mount -o remount,size=`; a container: --shm-size)")


CHECK = Check("shm-room", "memory", "shared memory (/dev/shm) has room for the ranks", judge)
