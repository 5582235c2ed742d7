"""An interface with another MTU than on the other nodes: small messages arrive, large ones may not, and a world hangs at its start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurmtrain.preflight.checks._majority import odd_ones, spread
from slurmtrain.preflight.checks.interface_up import named
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request


def compare(facts: Mapping[str, Facts], request: Request) -> Iterator[tuple[str, Trouble]]:
    name = str(request.site.fabric.rendezvous_interface)
    found = {node: known["interfaces"].get(name) for node, known in facts.items()}
    values = {node: str(one["mtu"]) for node, one in found.items() if one and one["mtu"]}
    common, odd = odd_ones(values)
    for node in odd:
        if common is None:
            remedy = f"set one MTU on all nodes (`ip link set {name} mtu N`)"
            yield node, Trouble("warn", f"its MTU differs: {spread(values)}", remedy, name)
        else:
            remedy = f"`ip link set {name} mtu {common}`, and in the network's configuration"
            yield node, Trouble("fail", f"its MTU is {values[node]}, {common} on most nodes", remedy, name)


CHECK = Check("interface-mtu", "interface", "fabric.rendezvous_interface has one MTU on all nodes", compare=compare, wanted=named)
