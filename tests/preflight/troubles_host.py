"""Troubles of fabric, interfaces, memory and the system. The good node is a DGX H100 as its kernel shows it (recorded/sys/h100-ib.txt)."""

from __future__ import annotations

from typing import Any

from tests.preflight.row import Row

FABRIC = {"kind": "infiniband", "nics_per_node": 8, "nic_gbps": 400, "rendezvous_interface": "bond0"}
SITE = {"fabric": FABRIC}
ROCE = {"fabric": {**FABRIC, "kind": "roce"}}
SLINGSHOT = {"fabric": {"kind": "slingshot", "nics_per_node": 4, "nic_gbps": 200}}
DIRECT = {"preflight": {"expect": ["IB", "GPUDirect"]}}
MEMORY = {"node": {"gpus": 8, "gpu": "NVIDIA H100 SXM", "memory_bytes": 1_900_000_000_000}}
DAY_S = 86400.0


def port(number: int, **changes: Any) -> dict[str, Any]:
    """A ConnectX-7 of a DGX H100."""
    good = {
        "device": f"mlx5_{number}",
        "port": "1",
        "board": "MT_0000000838",
        "firmware": "28.39.2048",
        "state": "ACTIVE",
        "physical": "LinkUp",
        "rate": "400 Gb/sec (4X NDR)",
        "gbps": 400.0,
        "layer": "InfiniBand",
        "interface": f"ib{number}",
        "mtu": 4092,
        "counters": {"symbol_error": 0, "link_downed": 1, "link_error_recovery": 0},
        "grown": {},
    }
    return {**good, **changes}


def ports(odd: int = -1, count: int = 8, **changes: Any) -> dict[str, Any]:
    """All ports of a node; one of them differs."""
    return {"ports": [port(number, **(changes if number == odd else {})) for number in range(count)]}


def roce(odd: int = -1, mtu: int = 9000, **changes: Any) -> dict[str, Any]:
    every = [{"layer": "Ethernet", "interface": f"eth{number + 1}", "mtu": mtu} for number in range(8)]
    return {"ports": [port(number, **{**every[number], **(changes if number == odd else {})}) for number in range(8)]}


def interface(**changes: Any) -> dict[str, Any]:
    return {"state": "up", "on": True, "mtu": 9000, "mbps": 200_000, "addresses": ["10.1.0.2"], "slaves": {}, **changes}


def interfaces(**found: dict[str, Any]) -> dict[str, Any]:
    lo = interface(state="unknown", mtu=65536, mbps=0, addresses=["127.0.0.1"])
    return {"interfaces": {"lo": lo, "bond0": interface(slaves={"eth0": "up", "eth1": "up"}), **found}}


def hsn(**odd: dict[str, Any]) -> dict[str, Any]:
    return interfaces(**{**{f"hsn{number}": interface() for number in range(4)}, **odd})


def shm(**changes: Any) -> dict[str, Any]:
    return {"shm": {"free_bytes": 1 << 40, "total_bytes": 1 << 40, **changes}}


FACTS = {
    "infiniband": {**ports(), "between_s": 1.0, "uptime_s": 40 * DAY_S},
    "interface": interfaces(),
    "memory": {
        "total_bytes": 2_113_000_000_000,
        "available_bytes": 2_050_000_000_000,
        "limit_bytes": 2_113_000_000_000,
        **shm(),
        "uncorrected": {},
    },
    "host": {"tasks_room": 4_000_000, "files_used": 30_000, "files_most": 9_223_372_036_854_775_807},
    "processes": {"left": []},
    "gpudirect": {"modules": ["nvidia_peermem"], "open_driver": False, "kernel": "5.15.0-1053-nvidia"},
}

ROCE_NODES = {"infiniband": roce()}
HSN_NODES = {"interface": hsn()}
LEFT = {"pid": 4711, "state": "R", "run": "/runs/llama", "attempt": 2, "job": "17"}
STUCK = {"infiniband": {**ports(3, counters={"link_downed": 12}), "uptime_s": 3600.0}}

ROWS = [
    Row("ib-ports", "no cable", {"infiniband": ports(3, state="DOWN", physical="Polling")}, "mlx5_3: port 1 is DOWN (Polling)"),
    Row("ib-ports", "switched off", {"infiniband": ports(3, state="DOWN", physical="Disabled")}, "--port_state UP"),
    Row("ib-ports", "no subnet manager", {"infiniband": ports(3, state="INIT")}, "port 1 is INIT (LinkUp): no subnet manager"),
    Row("ib-ports", "retrains", {"infiniband": ports(3, state="DOWN", physical="LinkErrorRecovery")}, "trains again and again"),
    Row("ib-ports", "a card is gone", {"infiniband": ports(count=7)}, "7 of 8 InfiniBand ports are there"),
    Row("ib-ports", "no driver", {"infiniband": ports(count=0)}, "0 of 8 InfiniBand ports are there"),
    Row(
        "ib-rate", "half its lanes", {"infiniband": ports(5, rate="200 Gb/sec (2X NDR)", gbps=200.0)}, "mlx5_5: runs at 200 Gb/sec (2X NDR)"
    ),
    Row("ib-link-layer", "Ethernet", {"infiniband": ports(0, layer="Ethernet")}, "mlxconfig -d mlx5_0 set LINK_TYPE_P1=1"),
    Row("ib-counters", "goes down now", {"infiniband": ports(2, grown={"link_downed": 1})}, "mlx5_2: link_downed grew by 1 in 1 s"),
    Row("ib-counters", "noise now", {"infiniband": ports(2, grown={"symbol_error": 25})}, "symbol_error grew by 25"),
    Row("ib-counters", "flaps", STUCK, "mlx5_3: link_downed is 12 in 1 d"),
    Row("ib-counters", "has flapped", {"infiniband": ports(2, counters={"link_downed": 60})}, "link_downed is 60 in 40 d", "warn"),
    Row("ib-counters", "noisy", {"infiniband": ports(2, counters={"symbol_error": 200_000})}, "symbol_error is 200000 in 40 d", "warn"),
    Row(
        "ib-firmware", "older", {"infiniband": ports(2, firmware="28.36.1010")}, "MT_0000000838: firmware 28.36.1010 and 28.39.2048", "warn"
    ),
    Row("interface", "another name", {"interface": {"interfaces": {"lo": {}, "eth0": {}}}}, "bond0: there is none; there are eth0"),
    Row("interface", "switched off", {"interface": interfaces(bond0=interface(on=False, state="down"))}, "`ip link set bond0 up`"),
    Row("interface", "no carrier", {"interface": interfaces(bond0=interface(state="lowerlayerdown"))}, "its state is lowerlayerdown"),
    Row("interface", "no address", {"interface": interfaces(bond0=interface(addresses=[]))}, "bond0: it has no address"),
    Row("interface-mtu", "small", {"interface": interfaces(bond0=interface(mtu=1500))}, "bond0: its MTU is 1500, 9000 on most nodes"),
    Row(
        "interface-bond",
        "one leg",
        {"interface": interfaces(bond0=interface(slaves={"eth0": "up", "eth1": "down"}))},
        "bond0: eth1, a part of it, is down",
        "warn",
    ),
    Row("memory-free", "held", {"memory": {"available_bytes": 900_000_000_000}}, "838.2 GiB of memory free, 1.6 TiB wanted", site=MEMORY),
    Row("memory-errors", "a bad module", {"memory": {"uncorrected": {"mc0": 2}}}, "mc0: 2 memory errors since boot"),
    Row("shm-room", "a container's", {"memory": shm(free_bytes=64 << 20, total_bytes=64 << 20)}, "64.0 MiB of 64.0 MiB free in /dev/shm"),
    Row("shm-room", "none", {"memory": {"shm": {"error": "No such file or directory"}}}, "there is no /dev/shm: No such file or directory"),
    Row("host-tasks", "a small limit", {"host": {"tasks_room": 500}}, "room for 500 more processes and threads, 1600 wanted"),
    Row("host-files", "all taken", {"host": {"files_used": 95_000, "files_most": 100_000}}, "95000 of 100000 files"),
    Row("leftover-ranks", "runs on", {"processes": {"left": [LEFT]}}, "process 4711: a process of attempt 2 of /runs/llama (job 17)"),
    Row("leftover-ranks", "stuck", {"processes": {"left": [{**LEFT, "state": "D", "job": ""}]}}, "have the node rebooted"),
    Row("gpudirect", "no module", {"gpudirect": {"modules": []}}, "nvidia_peermem is not loaded, and kernel 5.15", site=DIRECT),
    Row("ib-ports", "RoCE down", {"infiniband": roce(3, state="DOWN")}, "mlx5_3: port 1 is DOWN", site=ROCE, all_nodes=ROCE_NODES),
    Row(
        "roce-mtu", "small", {"infiniband": roce(mtu=1500)}, "the MTU of RoCE ports is 1500, 9000 on most", site=ROCE, all_nodes=ROCE_NODES
    ),
    Row(
        "hsn-ports",
        "down",
        {"interface": hsn(hsn2=interface(state="down"))},
        "hsn2: its state is down",
        site=SLINGSHOT,
        all_nodes=HSN_NODES,
    ),
    Row(
        "hsn-ports", "slow", {"interface": hsn(hsn2=interface(mbps=100_000))}, "hsn2: runs at 100 Gb/s", site=SLINGSHOT, all_nodes=HSN_NODES
    ),
    Row("hsn-ports", "gone", {"interface": interfaces(hsn0=interface())}, "1 of 4 interfaces hsn*", site=SLINGSHOT, all_nodes=HSN_NODES),
]
