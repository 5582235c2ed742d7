"""What the driver itself says must be done before a GPU is used again: its recovery action, or its reset status before driver 565."""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.checks._gpus import folded, gpus
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._nvidia import nvidia

_REBOOT = "reboot the node"
_RESET = "end what runs on it and reset it (`nvidia-smi -r -i INDEX`)"


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:  # noqa: ARG001 a check's signature
    for_all = ((gpu["index"], gpu["recovery"]) for gpu in gpus(facts) if gpu["recovery"])
    yield from folded((index, Trouble("fail", f"its driver asks for: {action}", _remedy(action))) for index, action in for_all)


def _remedy(action: str) -> str:
    return _REBOOT if "boot" in action.lower() else _RESET


CHECK = Check("gpu-recovery", "gpus", "the driver asks for no reset of a GPU", judge, wanted=nvidia)
