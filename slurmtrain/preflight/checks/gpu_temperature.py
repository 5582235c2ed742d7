"""GPUs that are hot before the start, by their own limits: degrees that are left until the hardware slows them down."""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.checks._gpus import folded, gpus
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._nvidia import nvidia

NEAR_C = 5
"""A full load leaves about ten."""
_REMEDY = "see the fans and the air or water of the node"


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:  # noqa: ARG001 a check's signature
    yield from folded((gpu["index"], trouble) for gpu in gpus(facts) for trouble in _troubles(gpu))


def _troubles(gpu: Facts) -> Iterator[Trouble]:
    left, memory, most = gpu["headroom_c"], gpu["memory_temp_c"], gpu["memory_max_c"]
    if left is not None and left <= NEAR_C:
        over = left <= 0
        said = "at which the hardware slows it down" if over else f"{left} below the point at which the hardware slows it down"
        yield Trouble("fail" if over else "warn", f"{gpu['temp_c']} C, {said}", _REMEDY)
    if memory is not None and most is not None and memory >= most > 0:
        yield Trouble("fail", f"its memory has {memory} C, and {most} C is its limit", _REMEDY)


CHECK = Check("gpu-temperature", "gpus", "no GPU is hot before the start", judge, wanted=nvidia)
