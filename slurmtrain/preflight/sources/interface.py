"""The node's network interfaces: /sys/class/net (Documentation/ABI/testing/sysfs-class-net), and addresses as ranks find them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slurmtrain.fabric.rendezvous import local_interfaces
from slurmtrain.preflight.machine import Machine
from slurmtrain.preflight.parts import Facts, Source
from slurmtrain.preflight.request import Request

CLASS = "/sys/class/net"
IFF_UP = 0x1
"""Of linux/if.h: an administrator has switched it on."""


def look(machine: Machine, request: Request, addresses: Callable[[], Mapping[str, Sequence[str]]] = local_interfaces) -> Facts:
    """`addresses`: the door to the kernel's, which no file shows."""
    del request
    known = addresses()
    names = [name for name in machine.names(CLASS) if machine.path(f"{CLASS}/{name}").is_dir()]
    return {"interfaces": {name: _interface(machine, name, known.get(name, ())) for name in names}}


def _interface(machine: Machine, name: str, addresses: Sequence[str]) -> dict[str, Any]:
    folder = f"{CLASS}/{name}"
    slaves = machine.text_or(f"{folder}/bonding/slaves").split()
    return {
        "state": machine.text_or(f"{folder}/operstate"),
        "on": bool(_number(machine.text_or(f"{folder}/flags")) & IFF_UP),
        "mtu": _number(machine.text_or(f"{folder}/mtu")),
        "mbps": _number(machine.text_or(f"{folder}/speed")),
        "addresses": list(addresses),
        "slaves": {slave: machine.text_or(f"{CLASS}/{slave}/operstate") for slave in slaves},
    }


def _number(text: str) -> int:
    """Decimal or 0x..., 0 for what is none; an interface that is down has no speed to read."""
    try:
        return int(text, 0)
    except ValueError:
        return 0


SOURCE = Source("interface", look, "a network driver hangs: look at dmesg, have the node rebooted")
