"""NVIDIA's GPUs of the node, by one call of `nvidia-smi -q -x`, which tells all that the checks of GPUs need.

| what it does | becomes |
|---|---|
| prints a log, whatever its exit code (14: an infoROM is damaged) | the facts, see `_smi` |
| "Unable to determine the device handle for GPU 0000:BA:00.0: GPU is lost" and no log | `lost`: the check gpu-lost names it |
| "No devices were found" | no GPUs: the check gpu-count says so |
| is not there, does not come to an end, does not reach its driver | unknown, each with its own remedy |

Where a program computes on a GPU of the job the node is asked again every `LEAVE_S`, as long as there is time: a rank that was killed
gives its memory back within seconds, and is no fault of the node.
"""

from __future__ import annotations

from typing import Any

from slurmtrain.preflight.machine import Machine
from slurmtrain.preflight.parts import Facts, Source
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._nvidia import LATE, SOURCE_S, all_ours, computing, limit_s, nvidia, refused, uptime_s
from slurmtrain.preflight.sources._smi import lost_gpus, parse_smi

LEAVE_S = 3.0
_NONE = "No devices were found"


def look(machine: Machine, request: Request) -> Facts:
    end = machine.clock.monotonic() + limit_s(request)
    facts = _ask(machine, limit_s(request))
    while _in_use(facts, request) and end - machine.clock.monotonic() > 2 * LEAVE_S:
        machine.clock.sleep(LEAVE_S)
        facts = _ask(machine, end - machine.clock.monotonic())
    return {**facts, "uptime_s": uptime_s(machine)}


def _in_use(facts: Facts, request: Request) -> bool:
    return all_ours(facts, request) and any(computing(gpu) for gpu in facts["gpus"])


def _ask(machine: Machine, timeout_s: float) -> dict[str, Any]:
    done = machine.run("nvidia-smi", "-q", "-x", timeout_s=timeout_s)
    try:
        return parse_smi(done.out)
    except ValueError:
        said = f"{done.out}\n{done.err}"
    lost = lost_gpus(said)
    if lost or _NONE in said:
        return {"driver": "", "cuda": "", "gpus": [], "lost": lost, "warnings": []}
    raise refused(done)


SOURCE = Source("gpus", look, late=LATE, wanted=nvidia, timeout_s=SOURCE_S)
