"""The interface at which ranks meet: fabric.rendezvous_interface."""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request

_DOWN = {"down", "lowerlayerdown", "notpresent", "dormant"}
"""States of RFC 2863 in which nothing gets through; "unknown" is what the loopback and tunnels say."""


def named(request: Request) -> bool:
    """Whether the site names an interface; else ranks take the one that reaches the first node."""
    return request.site.fabric.rendezvous_interface is not None


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:
    name = str(request.site.fabric.rendezvous_interface)
    found = facts["interfaces"].get(name)
    if found is None:
        others = ", ".join(other for other in facts["interfaces"] if other != "lo") or "none"
        yield Trouble("fail", f"there is none; there are {others}", "correct fabric.rendezvous_interface, or look at the card", name)
    elif not found["on"]:
        yield Trouble("fail", "it is switched off", f"`ip link set {name} up`, and have it up at boot", name)
    elif found["state"] in _DOWN:
        yield Trouble("fail", f"its state is {found['state']}", "look at its cable and the switch's port (`ethtool`)", name)
    elif not found["addresses"]:
        yield Trouble("fail", "it has no address", f"give it one (`ip addr show {name}`; DHCP or the network's configuration)", name)


CHECK = Check("interface", "interface", "fabric.rendezvous_interface is up and has an address", judge, wanted=named)
