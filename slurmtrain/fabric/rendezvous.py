"""Where ranks meet: the interface and address of rank 0, and the store on a port that the kernel gave.

Host names are never resolved: on clusters they often lead to the management network, or to 127.0.1.1. The port is 0 at bind and
broadcast over MPI, so that two worlds on one host cannot clash.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.errors import ConfigError

_ROUTES = Path("/proc/net/route")
_LOOPBACK = "127.0.0.1"
Interfaces = Mapping[str, Sequence[str]]
"""Interface to its addresses, IPv4 first."""


@dataclass(frozen=True)
class Endpoint:
    """An interface of this machine and the address to use on it."""

    interface: str
    address: str


def local_interfaces() -> dict[str, list[str]]:
    """Interfaces of this machine with their IPv4 addresses, then their routable IPv6 ones."""
    import psutil  # noqa: PLC0415 ranks alone need it

    found: dict[str, list[str]] = {}
    for name, addresses in psutil.net_if_addrs().items():
        four = [a.address for a in addresses if a.family == socket.AF_INET]
        six = [a.address for a in addresses if a.family == socket.AF_INET6 and not a.address.startswith("fe80")]
        found[name] = four + six
    return found


def default_interface(routes: str) -> str | None:
    """Interface of the default route with the lowest metric, from the text of /proc/net/route; None without one."""
    rows = [line.split() for line in routes.splitlines()[1:]]
    defaults = [(int(row[6]), row[0]) for row in rows if len(row) > 7 and row[1] == "00000000" and row[7] == "00000000"]
    return min(defaults)[1] if defaults else None


def read_routes() -> str:
    """The kernel's IPv4 routes; empty where it has none to show."""
    try:
        return _ROUTES.read_text()
    except OSError:
        return ""


def choose_endpoint(wanted: str | None, interfaces: Interfaces, *, one_node: bool, default: str | None) -> Endpoint:
    """The end on this node of the rendezvous network.

    `wanted` (the site's rendezvous_interface) is taken or refused, never replaced. Without it: the loopback for a world of one
    node, else the interface of the default route, else the first with an address that other nodes could reach.
    Raises ConfigError listing the interfaces that exist.
    """
    if wanted is not None:
        if not interfaces.get(wanted):
            problem = "has no address" if wanted in interfaces else "does not exist"
            raise _refused(f"{problem} on {{node}}", wanted, interfaces)
        return Endpoint(wanted, interfaces[wanted][0])
    if one_node:
        loopback = next((name for name, addresses in interfaces.items() if _LOOPBACK in addresses), None)
        if loopback is not None:
            return Endpoint(loopback, _LOOPBACK)
    names = [default] if default and interfaces.get(default) else []
    names += [name for name, addresses in interfaces.items() if addresses and not addresses[0].startswith("127.") and addresses[0] != "::1"]
    if not names:
        raise _refused("is not given and no interface of {node} has an address that other nodes can reach", None, interfaces)
    return Endpoint(names[0], interfaces[names[0]][0])


def set_socket_interfaces(environ: MutableMapping[str, str], site_interface: str | None, endpoint: Endpoint) -> None:
    """Set NCCL_ and GLOO_SOCKET_IFNAME where nobody did.

    NCCL's only if the site names an interface (its own search knows InfiniBand and bridges); gloo's always: it would resolve the host name.
    """
    environ.setdefault("GLOO_SOCKET_IFNAME", endpoint.interface)
    if site_interface is not None:
        environ.setdefault("NCCL_SOCKET_IFNAME", site_interface)


def _refused(problem: str, wanted: str | None, interfaces: Interfaces) -> ConfigError:
    there = ", ".join(f"{name} ({addresses[0]})" for name, addresses in sorted(interfaces.items()) if addresses) or "none"
    text = problem.format(node=f"host {socket.gethostname()}")  # a name to show, never one to connect to
    return ConfigError(f"{text}; there are: {there}", where="site", key="fabric.rendezvous_interface", value=wanted)
