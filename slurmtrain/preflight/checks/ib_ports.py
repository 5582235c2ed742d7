"""InfiniBand or RoCE ports that are down or missing: the node's traffic goes through the others, and every collective waits for it."""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.checks._ports import LAYERS, Port, name_of, sorted_out
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources.infiniband import asked

_NO_PARTNER = "look at its cable, its transceiver and the switch's port (`mlxlink -d DEVICE`)"
_REMEDIES = {
    "Polling": _NO_PARTNER,
    "Sleep": _NO_PARTNER,
    "Disabled": "it is switched off: `mlxlink -d DEVICE --port_state UP`, and of RoCE `ip link set INTERFACE up`",
    "LinkErrorRecovery": "the link trains again and again: have cable and transceiver cleaned or replaced",
    "LinkUp": "no subnet manager has made it active: look at opensm or UFM",
}
_MISSING = "look for the card in `lspci` and dmesg, load mlx5_ib, have it reseated; or correct fabric.nics_per_node and NCCL_IB_HCA"


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:
    ports, fabric = sorted_out(facts, request), request.site.fabric
    for port in ports.down:
        said = f"port {port['port']} is {port['state'] or 'without a state'} ({port['physical'] or 'no physical state'})"
        yield Trouble("fail", said, _remedy(port), name_of(port))
    if ports.missing:
        there = fabric.nics_per_node - ports.missing
        yield Trouble("fail", f"{there} of {fabric.nics_per_node} {LAYERS[fabric.kind]} ports are there", _MISSING)


def _remedy(port: Port) -> str:
    words = _REMEDIES.get(port["physical"], _NO_PARTNER)
    return words.replace("DEVICE", port["device"]).replace("INTERFACE", port["interface"] or "its interface")


CHECK = Check("ib-ports", "infiniband", "as many InfiniBand or RoCE ports are up as fabric.nics_per_node says", judge, wanted=asked)
