"""GPUDirect RDMA: without it every byte between nodes goes through the host's memory, and nothing but the speed tells."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources.gpudirect import asked

DMA_BUF_SINCE = (5, 12)
_REMEDY = "`modprobe nvidia-peermem`, and have it loaded at boot (/etc/modules-load.d)"


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:  # noqa: ARG001 as others of its kind
    if not facts["modules"] and not (facts["open_driver"] and _version(facts["kernel"]) >= DMA_BUF_SINCE):
        driver = "the open driver" if facts["open_driver"] else "the closed driver"
        said = f"nvidia_peermem is not loaded, and kernel {facts['kernel'] or 'unknown'} with {driver} has no dma-buf for GPUs"
        yield Trouble("fail", said, _REMEDY)


def _version(kernel: str) -> tuple[int, ...]:
    """`5.14.0-427.el9` is (5, 14)."""
    found = re.match(r"(\d+)\.(\d+)", kernel)
    return tuple(map(int, found.groups())) if found else (0,)


CHECK = Check("gpudirect", "gpudirect", "network cards can reach GPU memory, where preflight.expect has GPUDirect", judge, wanted=asked)
