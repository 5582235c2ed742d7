"""GPUs that are cut into slices (MIG): a rank would see a slice, and NCCL knows no way between slices."""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.checks._gpus import folded, gpus
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._nvidia import nvidia

_REMEDY = "`nvidia-smi -mig 0` as root and a reset of the GPU, or ask for nodes without MIG"


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:  # noqa: ARG001 a check's signature
    yield from folded((gpu["index"], Trouble("fail", "MIG is on", _REMEDY)) for gpu in gpus(facts) if gpu["mig"] == "Enabled")


CHECK = Check("gpu-mig", "gpus", "no GPU is cut into slices", judge, wanted=nvidia)
