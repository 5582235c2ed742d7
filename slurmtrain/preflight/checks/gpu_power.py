"""GPUs whose power is limited below that of most of their name: they clock lower under load, and all ranks wait for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurmtrain.preflight.checks._gpus import folded, gpus, most
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._nvidia import nvidia

_REMEDY = "`nvidia-smi -pl WATTS` as root where the node's supplies allow it, or ask for nodes of one limit"


def compare(facts: Mapping[str, Facts], request: Request) -> Iterator[tuple[str, Trouble]]:  # noqa: ARG001 a check's signature
    limits: dict[str, list[int]] = {}
    for known in facts.values():
        for gpu in gpus(known):
            if gpu["power_limit_w"] is not None:
                limits.setdefault(gpu["name"], []).append(gpu["power_limit_w"])
    usual = {name: most(sorted(found, reverse=True)) or 0 for name, found in limits.items()}
    for node, known in facts.items():
        low = (gpu for gpu in gpus(known) if gpu["power_limit_w"] is not None and gpu["power_limit_w"] < usual[gpu["name"]])
        told = folded((gpu["index"], _told(gpu["power_limit_w"], usual[gpu["name"]])) for gpu in low)
        yield from ((node, trouble) for trouble in told)


def _told(watts: int, usual: int) -> Trouble:
    return Trouble("warn", f"limited to {watts} W, most others to {usual}", _REMEDY)


CHECK = Check("gpu-power", "gpus", "one limit of power on all GPUs of a model", compare=compare, wanted=nvidia)
