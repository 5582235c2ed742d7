"""GPUs whose clocks are held down now, before anything runs on them.

| reason | grade |
|---|---|
| hw_thermal_slowdown, hw_power_brake_slowdown; hw_slowdown without either | fail: to half the clock or less, by hardware |
| sw_thermal_slowdown | warn: it is warm, from the job before or from its air |
| sw_power_cap, idle, clock settings, sync boost | nothing: how a healthy GPU is driven |
"""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.checks._gpus import folded, gpus
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._nvidia import nvidia

_COOL = "see its temperature, the fans and the air or water of the node"
_POWER = "see the power supplies and cables of the node, and its power budget in the BMC"
_HARD = {
    "hw_thermal_slowdown": ("the hardware slows it down because of heat", _COOL),
    "hw_power_brake_slowdown": ("the node's power brake slows it down", _POWER),
}


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:  # noqa: ARG001 a check's signature
    yield from folded((gpu["index"], trouble) for gpu in gpus(facts) for trouble in _troubles(set(gpu["throttle"])))


def _troubles(reasons: set[str]) -> Iterator[Trouble]:
    hard = [_HARD[reason] for reason in sorted(reasons & set(_HARD))]
    if not hard and "hw_slowdown" in reasons:
        hard = [("the hardware slows it down", f"{_COOL}; {_POWER}")]
    for said, remedy in hard:
        yield Trouble("fail", said, remedy)
    if "sw_thermal_slowdown" in reasons:
        yield Trouble("warn", "the driver slows it down because of heat", _COOL)


CHECK = Check("gpu-throttle", "gpus", "no GPU is slowed down by heat or power", judge, wanted=nvidia)
