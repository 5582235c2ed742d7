"""GPUs behind NVSwitches that have not joined the fabric: CUDA then fails to start there ("system not yet initialized", error 802).

| what the GPU says | grade |
|---|---|
| state "Not Started", "In Progress"; "Completed" with another status than "Success" | fail: the Fabric Manager has not done its work |
| nothing, where the same model says "Completed" on most nodes | fail, likewise |
| no cluster, where NVLink reaches over several nodes (nvlink_domain = "block") | fail: its NVLink ends at the node |
| health: summary "Unhealthy", bandwidth "Degraded", a route that is unhealthy, a wrong configuration | fail |
| health: a route or an access that is being recovered, limited capacity | warn |

Boards without NVSwitches (PCIe, A100, GH200) say nothing of it. Names: nvmlGpuFabricInfoV_t of docs.nvidia.com/deploy/nvml-api.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurmtrain.preflight.checks._gpus import folded, gpus, most, named
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._nvidia import nvidia

_MANAGER = "see `systemctl status nvidia-fabricmanager` on the node (its version must be the driver's), start it, else reboot"
_LINKS = "see `nvidia-smi nvlink -s` and `dmesg | grep -i sxid` on the node; reset its GPUs together, else reboot"
_IMEX = "see `nvidia-smi -q | grep -A9 Fabric` on the node, the NVLink switches of its rack and their fabric manager"
_BAD = {"summary": ("Unhealthy",), "bandwidth": ("Degraded",), "route_unhealthy": ("True",)}
_WATCHED = {"summary": ("Limited Capacity",), "route_recovery_in_progress": ("True",), "access_timeout_recovery": ("True",)}
_RIGHT = ("None", "False", "No")


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:
    block = request.site.node.nvlink_domain == "block"
    yield from folded((gpu["index"], trouble) for gpu in gpus(facts) for trouble in _troubles(gpu["fabric"], block=block))


def _troubles(fabric: Mapping[str, str], *, block: bool) -> Iterator[Trouble]:
    state, status = fabric.get("state", ""), fabric.get("status", "")
    if state and (state != "Completed" or status not in {"", "Success"}):
        yield Trouble("fail", f"it has not joined the NVSwitch fabric: {state}{f', {status}' if status else ''}", _MANAGER)
        return
    if block and state and not fabric.get("clusterUuid", "").strip("0-"):
        yield Trouble("fail", "it belongs to no NVLink cluster, and nvlink_domain is block", _IMEX)
    bad = [f"{name} {fabric[name]}" for name, values in _BAD.items() if fabric.get(name) in values]
    if fabric.get("incorrect_configuration", "None") not in _RIGHT:
        bad.append(f"incorrect configuration {fabric['incorrect_configuration']}")
    watched = [f"{name} {fabric[name]}" for name, values in _WATCHED.items() if fabric.get(name) in values]
    if bad or watched:
        yield Trouble("fail" if bad else "warn", f"NVLink fabric: {', '.join(bad or watched)}".replace("_", " "), _LINKS)


def compare(facts: Mapping[str, Facts], request: Request) -> Iterator[tuple[str, Trouble]]:  # noqa: ARG001 a check's signature
    states: dict[str, list[str]] = {}
    for known in facts.values():
        for gpu in gpus(known):
            states.setdefault(gpu["name"], []).append(gpu["fabric"].get("state", ""))
    joined = {name for name, found in states.items() if most(found) == "Completed"}
    for node, known in facts.items():
        out = [gpu["index"] for gpu in gpus(known) if gpu["name"] in joined and not gpu["fabric"].get("state")]
        if out:
            yield node, Trouble("fail", "it is in no NVSwitch fabric, and others are", _MANAGER, named(out))


CHECK = Check("gpu-fabric", "gpus", "the GPUs have joined the NVSwitch fabric", judge, compare, wanted=nvidia)
