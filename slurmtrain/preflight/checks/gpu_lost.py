"""GPUs that the driver has given up: fallen off the bus, or waiting for a reset; and a damaged infoROM.

`nvidia-smi` then prints "Unable to determine the device handle" and no log, or "GPU is lost", "GPU requires reset" in the place of values.
"""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.checks._gpus import named
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._nvidia import nvidia

_REBOOT = "reboot the node; where it comes again, have the GPU reseated or replaced (`dmesg | grep -i xid`)"
_RESET = "end what runs on it and reset it (`nvidia-smi -r -i INDEX`), else reboot the node"
_INFOROM = "the board's own store of settings and error counts is damaged: it computes, but have it looked at"


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:  # noqa: ARG001 a check's signature
    for lost in facts["lost"]:
        yield Trouble("fail", f"the driver has no handle for GPU {lost}", _REBOOT)
    for gpu in facts["gpus"]:
        if gpu["dead"]:
            remedy = _RESET if "reset" in gpu["dead"].lower() else _REBOOT
            yield Trouble("fail", f"{gpu['bus']}: {gpu['dead']}", remedy, named([gpu["index"]]))
    for warning in facts["warnings"]:
        yield Trouble("warn", warning.removeprefix("WARNING:").strip(), _INFOROM)


CHECK = Check("gpu-lost", "gpus", "the driver reaches every GPU", judge, wanted=nvidia)
