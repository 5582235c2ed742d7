"""The RDMA ports of a node, as the kernel shows them in /sys/class/infiniband (Documentation/ABI/stable/sysfs-class-infiniband).

InfiniBand and RoCE ports look the same there but for `link_layer`. Counters run since the driver was loaded and do not say when they
grew, so they are read twice, `BETWEEN_S` apart.
"""

from __future__ import annotations

from typing import Any

from slurmtrain.preflight.machine import Machine
from slurmtrain.preflight.parts import Facts, Source
from slurmtrain.preflight.request import Request

CLASS = "/sys/class/infiniband"
COUNTERS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
BETWEEN_S = 1.0
KINDS = ("infiniband", "roce")


def asked(request: Request) -> bool:
    """Whether the site says which ports a node has."""
    return request.site.fabric.kind in KINDS and request.site.fabric.nics_per_node > 0


def look(machine: Machine, request: Request) -> Facts:  # noqa: ARG001 a source's signature
    ports = [_port(machine, device, number) for device in machine.names(CLASS) for number in machine.names(f"{CLASS}/{device}/ports")]
    before = [_counters(machine, port) for port in ports]
    began = machine.clock.monotonic()
    if ports:
        machine.clock.sleep(BETWEEN_S)
    for port, old in zip(ports, before, strict=True):
        now = _counters(machine, port)
        port["counters"] = now
        port["grown"] = {name: now[name] - old[name] for name in now if now[name] > old.get(name, now[name])}
    return {"ports": ports, "between_s": machine.clock.monotonic() - began, "uptime_s": _uptime_s(machine)}


def _port(machine: Machine, device: str, number: str) -> dict[str, Any]:
    folder, port = f"{CLASS}/{device}", f"{CLASS}/{device}/ports/{number}"
    rate = machine.text_or(f"{port}/rate")
    interface = _interface(machine, device, number)
    mtu = machine.text_or(f"/sys/class/net/{interface}/mtu") if interface else ""
    return {
        "device": device,
        "port": number,
        "board": machine.text_or(f"{folder}/board_id"),
        "firmware": machine.text_or(f"{folder}/fw_ver"),
        "state": _word(machine.text_or(f"{port}/state")),
        "physical": _word(machine.text_or(f"{port}/phys_state")),
        "rate": rate,
        "gbps": _gbps(rate),
        "layer": machine.text_or(f"{port}/link_layer"),
        "interface": interface,
        "mtu": int(mtu) if mtu.isdigit() else None,
    }


def _interface(machine: Machine, device: str, number: str) -> str:
    """The network interface of a port: that of its first GID (RoCE), else the only one of the device."""
    named = machine.text_or(f"{CLASS}/{device}/ports/{number}/gid_attrs/ndevs/0")
    found = machine.names(f"{CLASS}/{device}/device/net")
    return named or (found[0] if len(found) == 1 else "")


def _word(text: str) -> str:
    """`4: ACTIVE` is ACTIVE."""
    return text.partition(":")[2].strip() or text


def _gbps(rate: str) -> float:
    """`400 Gb/sec (4X NDR)` is 400; what is no rate is 0."""
    try:
        return float(rate.split(maxsplit=1)[0])
    except (IndexError, ValueError):
        return 0.0


def _counters(machine: Machine, port: dict[str, Any]) -> dict[str, int]:
    """Those that this driver has: a virtual function lacks some."""
    folder = f"{CLASS}/{port['device']}/ports/{port['port']}/counters"
    texts = {name: machine.text_or(f"{folder}/{name}") for name in COUNTERS}
    return {name: int(text) for name, text in texts.items() if text.isdigit()}


def _uptime_s(machine: Machine) -> float:
    """Of the machine; counters are no older."""
    return float(machine.text("/proc/uptime").split()[0])


SOURCE = Source("infiniband", look, "a driver of the network hangs: look at dmesg for mlx5, have the node rebooted", asked)
