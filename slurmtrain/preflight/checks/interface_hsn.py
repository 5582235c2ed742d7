"""Slingshot's interfaces, hsn0, hsn1, ... (HPE Slingshot's names): as many up as the site says, at its speed."""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request

_LINK = "look at `cxi_stat` and the switch's port; have the cable reseated"
_MISSING = "look for the card in `lspci` and dmesg (cxi), or correct fabric.nics_per_node"


def wanted(request: Request) -> bool:
    return request.site.fabric.kind == "slingshot" and request.site.fabric.nics_per_node > 0


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:
    fabric = request.site.fabric
    found = {name: one for name, one in facts["interfaces"].items() if name.startswith("hsn") and name[3:].isdigit()}
    good = [name for name, one in found.items() if one["state"] == "up" and not _is_slow(one["mbps"], fabric.nic_gbps)]
    if len(good) >= fabric.nics_per_node:
        return
    for name, one in found.items():
        if one["state"] != "up":
            yield Trouble("fail", f"its state is {one['state'] or 'unknown'}", _LINK, name)
        elif name not in good:
            yield Trouble("fail", f"runs at {one['mbps'] / 1000:g} Gb/s, {fabric.nic_gbps} wanted", _LINK, name)
    if len(found) < fabric.nics_per_node:
        yield Trouble("fail", f"{len(found)} of {fabric.nics_per_node} interfaces hsn* are there", _MISSING)


def _is_slow(mbps: int, gbps: int) -> bool:
    """A speed that the driver does not tell is not slow."""
    return 0 < mbps < 1000 * gbps


CHECK = Check("hsn-ports", "interface", "as many Slingshot interfaces are up as fabric.nics_per_node says", judge, wanted=wanted)
