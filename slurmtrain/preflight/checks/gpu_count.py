"""Fewer GPUs than the job has on a node: one is gone from the bus, or the job's cgroup does not let it in."""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._nvidia import nvidia

_REMEDY = "see `lspci -d 10de:` and `dmesg | grep -i nvrm` on the node, and that the job has asked for its GPUs (slurm.gpus_option)"


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:
    found, wanted = len(facts["gpus"]), request.gpus_per_node or 1
    if found < wanted and not facts["lost"]:
        yield Trouble("fail", f"{found} GPUs of {wanted} are there", _REMEDY)


CHECK = Check("gpu-count", "gpus", "all GPUs of the job are there", judge, wanted=nvidia)
