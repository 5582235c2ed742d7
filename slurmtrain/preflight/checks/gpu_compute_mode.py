"""GPUs on which nobody may compute. One process a GPU ("Exclusive_Process") is enough for us, and no trouble."""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.checks._gpus import folded, gpus
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._nvidia import nvidia

_TROUBLE = Trouble("fail", "its compute mode is Prohibited", "`nvidia-smi -c DEFAULT` as root")


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:  # noqa: ARG001 a check's signature
    yield from folded((gpu["index"], _TROUBLE) for gpu in gpus(facts) if gpu["compute_mode"] == "Prohibited")


CHECK = Check("gpu-compute-mode", "gpus", "the GPUs may be computed on", judge, wanted=nvidia)
