"""A bond that has lost a leg: the node works, at half its speed, until the other one goes."""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.checks.interface_up import named
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:
    name = str(request.site.fabric.rendezvous_interface)
    for slave, state in facts["interfaces"].get(name, {}).get("slaves", {}).items():
        if state != "up":
            remedy = f"look at the cable and the switch's port of {slave} (`ethtool {slave}`)"
            yield Trouble("warn", f"{slave}, a part of it, is {state or 'not there'}", remedy, name)


CHECK = Check("interface-bond", "interface", "all parts of a bonded fabric.rendezvous_interface are up", judge, wanted=named)
