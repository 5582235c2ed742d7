"""Cards that can be both and are set to the wrong one: Ethernet where the fabric is InfiniBand, or the other way round."""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.checks._ports import LAYERS, name_of, sorted_out
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources.infiniband import asked

_LINK_TYPES = {"InfiniBand": 1, "Ethernet": 2}
"""LINK_TYPE_P1 of mlxconfig (NVIDIA Firmware Tools)."""


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:
    wanted = LAYERS[request.site.fabric.kind]
    for port in sorted_out(facts, request).other:
        setting = f"mlxconfig -d {port['device']} set LINK_TYPE_P{port['port']}={_LINK_TYPES[wanted]}"
        yield Trouble("fail", f"its link layer is {port['layer']}, {wanted} wanted", f"`{setting}`, then reboot the node", name_of(port))


CHECK = Check("ib-link-layer", "infiniband", "ports speak InfiniBand, or Ethernet where the fabric is RoCE", judge, wanted=asked)
