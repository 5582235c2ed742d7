"""Which RDMA ports of a node the site means, and which of them are fit: for the checks of ports.

NCCL_IB_HCA says which ports NCCL uses (NCCL's user guide): names, or beginnings of names, with `:port` or without; `=` before all: these
very names; `^` before all: every other. Without it all ports of the right link layer count. A site says how many there must be: a node
with as many good ones is fit, whatever its other ports do (they may be storage's, or have no cable).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurmtrain.preflight.parts import Facts
from slurmtrain.preflight.request import Request

Port = Mapping[str, Any]
LAYERS = {"infiniband": "InfiniBand", "roce": "Ethernet"}


@dataclass(frozen=True)
class Ports:
    """`up`: of the right link layer, active; `good`: those at full rate. Of a node that has fewer good ones than it should also what may
    be the reason: ports that are `down`, `slow`, of the `other` layer; `missing`: how many are not there at all.
    """

    up: tuple[Port, ...]
    good: tuple[Port, ...]
    down: tuple[Port, ...] = ()
    slow: tuple[Port, ...] = ()
    other: tuple[Port, ...] = ()
    missing: int = 0


def sorted_out(facts: Facts, request: Request) -> Ports:
    fabric = request.site.fabric
    rule = hca_rule(request)
    meant = [port for port in facts["ports"] if takes(rule, port["device"], port["port"])]
    own = [port for port in meant if port["layer"] == LAYERS[fabric.kind]]
    up = tuple(port for port in own if is_up(port))
    good = tuple(port for port in up if port["gbps"] >= fabric.nic_gbps)
    short = fabric.nics_per_node - len(good)
    if short <= 0:
        return Ports(up, good)
    down = tuple(port for port in own if not is_up(port))
    slow = tuple(port for port in up if port["gbps"] < fabric.nic_gbps)
    short -= len(down) + len(slow)
    other = tuple(port for port in meant if port not in own and port["gbps"] >= fabric.nic_gbps) if short > 0 else ()
    return Ports(up, good, down, slow, other, max(0, short - len(other)))


def is_up(port: Port) -> bool:
    return port["state"] == "ACTIVE" and port["physical"] in {"LinkUp", ""}


def name_of(port: Port) -> str:
    """mlx5_3; of a card's second port mlx5_3:2."""
    return str(port["device"]) if port["port"] == "1" else f"{port['device']}:{port['port']}"


def hca_rule(request: Request) -> str:
    """NCCL_IB_HCA of the ranks: the job's, else the site's."""
    site = request.site
    return {**site.environment.set, **site.fabric.environment, **request.environment}.get("NCCL_IB_HCA", "")


def takes(rule: str, device: str, port: str) -> bool:
    """Whether NCCL takes this port.

    >>> takes("mlx5", "mlx5_10", "1"), takes("=mlx5_1", "mlx5_10", "1"), takes("^mlx5_1:2", "mlx5_1", "1")
    (True, False, True)
    """
    names = rule.removeprefix("^").removeprefix("=")
    exact = rule.removeprefix("^").startswith("=")
    found = any(_fits(name, device, port, exact=exact) for name in names.split(",") if name.strip())
    return found != rule.startswith("^") if names.strip() else True


def _fits(name: str, device: str, port: str, *, exact: bool) -> bool:
    wanted, _, number = name.strip().partition(":")
    return (device == wanted if exact else device.startswith(wanted)) and number in {"", port}
