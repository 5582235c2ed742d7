"""RoCE ports whose MTU is not that of the others: two ends use the smaller one, so a node with a small MTU slows all its partners."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurmtrain.preflight.checks._majority import odd_ones, spread
from slurmtrain.preflight.checks._ports import sorted_out
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources.infiniband import asked


def wanted(request: Request) -> bool:
    """Of InfiniBand the subnet manager sets it."""
    return asked(request) and request.site.fabric.kind == "roce"


def compare(facts: Mapping[str, Facts], request: Request) -> Iterator[tuple[str, Trouble]]:
    values: dict[str, str] = {}
    for node, known in facts.items():
        found = sorted({port["mtu"] for port in sorted_out(known, request).good if port["mtu"]})
        if found:
            values[node] = " and ".join(str(mtu) for mtu in found)
    common, odd = odd_ones(values)
    for node in odd:
        if common is None:
            said, remedy = f"the MTU of RoCE ports differs: {spread(values)}", "set one MTU on all of them (`ip link set DEV mtu N`)"
            yield node, Trouble("warn", said, remedy)
        else:
            remedy = f"`ip link set DEV mtu {common}` for each of them, and in the network's configuration"
            yield node, Trouble("fail", f"the MTU of RoCE ports is {values[node]}, {common} on most nodes", remedy)


CHECK = Check("roce-mtu", "infiniband", "RoCE ports have one MTU on all nodes", compare=compare, wanted=wanted)
