"""Errors of memory that could not be corrected since the driver was loaded, and memory without ECC.

An uncorrectable error has ended a program, or spoiled what it computed; DCGM's health check asks for a reset of such a GPU, too
("DCGM_FR_VOLATILE_DBE_DETECTED"), before it is trusted again. Without ECC an error is seen by nobody: where all GPUs are so it is the
site's choice, and told once; a GPU that is so among others that are not is a fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurmtrain.preflight.checks._gpus import folded, gpus, named, told_once
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._nvidia import nvidia

_RESET = "drain the node and reset the GPU (`nvidia-smi -r -i INDEX`); where it comes again, have it replaced"
_REPLACE = "have the GPU replaced"
_REPAIR = "the next reset of the GPU repairs it (`nvidia-smi -r -i INDEX`)"
_ON = "`nvidia-smi -e 1` and a reset; a GPU without it computes on with wrong bits"


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:  # noqa: ARG001 a check's signature
    yield from folded((gpu["index"], trouble) for gpu in gpus(facts) for trouble in _troubles(gpu))


def _troubles(gpu: Facts) -> Iterator[Trouble]:
    counts = [f"{count} in {kind.upper()}" for kind, count in gpu["uncorrectable"].items() if count]
    if counts:
        yield Trouble("fail", f"uncorrectable memory errors since the driver was loaded: {', '.join(counts)}", _RESET)
    if gpu["sram_threshold"] == "Yes":
        yield Trouble("fail", "more errors of its SRAM than its maker allows", _REPLACE)
    if gpu["unrepairable"] == "Yes":
        yield Trouble("fail", "memory that cannot be repaired", _REPLACE)
    if gpu["repairs"]:
        yield Trouble("warn", f"a repair is pending: {', '.join(gpu['repairs'])}", _REPAIR)


def compare(facts: Mapping[str, Facts], request: Request) -> Iterator[tuple[str, Trouble]]:  # noqa: ARG001 a check's signature
    off = {node: [gpu["index"] for gpu in gpus(known) if gpu["ecc"] == "Disabled"] for node, known in facts.items()}
    on = sum(gpu["ecc"] == "Enabled" for known in facts.values() for gpu in gpus(known))
    nodes = [node for node, indices in off.items() if indices]
    if on and on >= sum(map(len, off.values())):
        for node in nodes:
            yield node, Trouble("fail", "ECC is off, and on on other GPUs", _ON, named(off[node]))
    else:
        yield from told_once(nodes, Trouble("warn", "ECC is off", _ON))


CHECK = Check("gpu-ecc", "gpus", "memory without errors, and ECC on", judge, compare, wanted=nvidia)
