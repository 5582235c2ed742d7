"""RDMA ports as kernels show them: what is read, which ports a site means, and which counters are trouble."""

from __future__ import annotations

import pytest

from slurmtrain.preflight.checks import ib_counters, ib_firmware, ib_gpudirect, ib_link_layer, ib_ports, ib_rate
from slurmtrain.preflight.checks._ports import sorted_out, takes
from slurmtrain.preflight.sources import gpudirect, infiniband
from tests.fakes.clock import FakeClock
from tests.preflight.tree import Tree, judged, request

CLASS = "/sys/class/infiniband"


def asked(kind: str = "infiniband", nics: int = 8, gbps: int = 400, hca: str = "", **more):
    environment = {"NCCL_IB_HCA": hca} if hca else {}
    site = {"fabric": {"kind": kind, "nics_per_node": nics, "nic_gbps": gbps, "environment": environment}, **more}
    return request(site=site)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Tree:
    made = Tree(tmp_path_factory.mktemp("h100"), "h100-ib")
    made.keep()
    return made


@pytest.fixture
def h100(recorded):
    yield recorded
    recorded.restore()


def look(tree: Tree, clock=None):
    return infiniband.look(tree.machine(clock), asked())


def test_a_dgx_h100_is_read_as_it_is(h100):
    seen = look(h100)
    assert [(p["device"], p["state"], p["physical"], p["gbps"], p["layer"]) for p in seen["ports"]] == [
        *((f"mlx5_{number}", "ACTIVE", "LinkUp", 400.0, "InfiniBand") for number in range(8)),
        ("mlx5_8", "ACTIVE", "LinkUp", 200.0, "Ethernet"),
        ("mlx5_9", "DOWN", "Disabled", 200.0, "Ethernet"),
    ]
    first, storage = seen["ports"][0], seen["ports"][8]
    assert (first["board"], first["firmware"], first["mtu"]) == ("MT_0000000838", "28.39.2048", 4092)
    assert (storage["interface"], storage["mtu"]) == ("enp170s0f0np0", 9000)
    assert (seen["uptime_s"], seen["between_s"]) == (3456000.12, 1.0)
    assert set(first["counters"]) == set(infiniband.COUNTERS)


def test_a_real_machine_of_other_cards_is_read_too(tmp_path):
    seen = look(Tree(tmp_path, "mlx4-hfi1"))["ports"]
    assert [(p["device"], p["port"], p["gbps"], p["firmware"]) for p in seen] == [
        ("hfi1_0", "1", 100.0, "1.27.0"),
        ("mlx4_0", "1", 40.0, "2.31.5050"),
        ("mlx4_0", "2", 40.0, "2.31.5050"),
    ]


@pytest.mark.parametrize("check", [ib_ports, ib_rate, ib_link_layer, ib_counters])
def test_a_healthy_one_has_no_trouble_though_a_storage_port_is_down(h100, check):
    assert judged(check.CHECK, look(h100), asked()) == []


@pytest.mark.parametrize(
    ("files", "check", "said"),
    [
        ({"state": "1: DOWN", "phys_state": "2: Polling"}, ib_ports, "mlx5_3: port 1 is DOWN (Polling)"),
        ({"phys_state": "6: LinkErrorRecovery"}, ib_ports, "mlx5_3: port 1 is ACTIVE (LinkErrorRecovery)"),
        ({"state": "2: INIT"}, ib_ports, "mlx5_3: port 1 is INIT (LinkUp)"),
        ({"rate": "100 Gb/sec (1X NDR)"}, ib_rate, "mlx5_3: runs at 100 Gb/sec (1X NDR), 400 Gb/s wanted"),
        ({"link_layer": "Ethernet"}, ib_link_layer, "mlx5_3: its link layer is Ethernet, InfiniBand wanted"),
    ],
)
def test_one_port_that_is_not_as_it_should_be(h100, files, check, said):
    for name, text in files.items():
        h100.write(f"{CLASS}/mlx5_3/ports/1/{name}", text)
    seen = look(h100)
    assert judged(check.CHECK, seen, asked()) == [("fail", said)]
    others = {ib_ports, ib_rate, ib_link_layer} - {check}
    assert [judged(other.CHECK, seen, asked()) for other in others] == [[], []], "and it is told once"


def test_no_infiniband_at_all(tmp_path):
    tree = Tree(tmp_path)
    tree.write("/proc/uptime", "100.0 100.0")
    assert judged(ib_ports.CHECK, look(tree), asked()) == [("fail", "0 of 8 InfiniBand ports are there")]


def test_a_site_that_says_no_number_of_nics_is_not_checked():
    for check in (ib_ports, ib_rate, ib_link_layer, ib_counters, ib_firmware):
        assert not check.CHECK.wanted(asked(nics=0))
        assert not check.CHECK.wanted(asked(kind="ethernet"))


@pytest.mark.parametrize(
    ("rule", "device", "port", "taken"),
    [  # NCCL's user guide, NCCL_IB_HCA: its examples, and what they leave out
        ("", "mlx5_9", "1", True),
        ("mlx5", "mlx5_9", "1", True),
        ("mlx5", "mlx4_0", "1", False),
        ("=mlx5_0:1,mlx5_1:1", "mlx5_1", "1", True),
        ("=mlx5_0:1,mlx5_1:1", "mlx5_1", "2", False),
        ("=mlx5_0:1,mlx5_1:1", "mlx5_10", "1", False),
        ("^mlx5_3", "mlx5_3", "1", False),
        ("^mlx5_3", "mlx5_0", "1", True),
        ("^=mlx5_3,mlx5_4", "mlx5_30", "1", True),
        ("^=mlx5_3,mlx5_4", "mlx5_4", "1", False),
    ],
)
def test_the_ports_that_nccl_is_told_to_use(rule, device, port, taken):
    assert takes(rule, device, port) is taken


def test_of_a_roce_site_the_named_ports_count(h100):
    roce = asked("roce", 2, 200, "=mlx5_8,mlx5_9")
    ports = sorted_out(look(h100), roce)
    assert [port["device"] for port in ports.good] == ["mlx5_8"]
    assert judged(ib_ports.CHECK, look(h100), roce) == [("fail", "mlx5_9: port 1 is DOWN (Disabled)")]
    assert judged(ib_ports.CHECK, look(h100), asked("roce", 1, 200)) == []


@pytest.mark.parametrize(
    ("name", "to", "found"),
    [
        ("link_downed", 1, [("fail", "mlx5_1: link_downed grew by 1 in 1 s")]),
        ("symbol_error", 9, []),
        ("symbol_error", 10, [("fail", "mlx5_1: symbol_error grew by 10 in 1 s")]),
        ("port_xmit_wait", 10**9, []),
    ],
)
def test_counters_that_grow_while_one_looks(h100, name, to, found):
    clock = FakeClock()
    clock.at(0.5, lambda: h100.write(f"{CLASS}/mlx5_1/ports/1/counters/{name}", to))
    seen = look(h100, clock)
    assert judged(ib_counters.CHECK, seen, asked()) == found


@pytest.mark.parametrize(
    ("name", "count", "days", "found"),
    [
        ("link_downed", 9, 0.1, []),  # a switch was started a few times
        ("link_downed", 10, 0.1, ["fail"]),  # infiniband-diags' bound, within a day
        ("link_downed", 39, 40, []),
        ("link_downed", 40, 40, ["warn"]),
        ("link_downed", 400, 40, ["fail"]),
        ("symbol_error", 2880, 1, []),  # NVSentinel's 120 an hour
        ("symbol_error", 2880, 0.1, []),  # links have just been trained
        ("symbol_error", 2881, 1, ["warn"]),
        ("port_rcv_errors", 10**6, 1, []),  # since boot it says nothing: peers that were killed make some
    ],
)
def test_counters_since_boot_by_the_documented_bounds(h100, name, count, days, found):
    h100.write(f"{CLASS}/mlx5_1/ports/1/counters/{name}", count)
    h100.write("/proc/uptime", f"{days * 86400:.2f} 0.00")
    assert [grade for grade, _ in judged(ib_counters.CHECK, look(h100), asked())] == found


def test_firmware_is_compared_among_cards_of_one_kind(h100):
    good = look(h100)
    h100.write(f"{CLASS}/mlx5_2/fw_ver", "28.36.1010")
    found = list(ib_firmware.CHECK.compare({"n1": good, "n2": look(h100), "n3": good}, asked()))
    assert [(node, trouble.grade) for node, trouble in found] == [("n2", "warn")]
    two = list(ib_firmware.CHECK.compare({"n1": good, "n2": look(h100)}, asked()))
    assert [node for node, _ in two] == ["n1", "n2"], "of two nobody knows which is right"


OPEN, CLOSED = "NVIDIA UNIX Open Kernel Module for x86_64  570.124.06", "NVIDIA UNIX x86_64 Kernel Module  535.161.08"


@pytest.mark.parametrize(
    ("module", "driver", "kernel", "fit"),
    [
        ("nvidia_peermem", CLOSED, "5.15.0-1053-nvidia", True),
        ("nv_peer_mem", CLOSED, "4.18.0-553.el8_10.x86_64", True),
        ("", CLOSED, "5.15.0-1053-nvidia", False),
        ("", OPEN, "5.15.0-1053-nvidia", True),
        ("", OPEN, "4.18.0-553.el8_10.x86_64", False),
        ("", "", "", False),
    ],
)
def test_gpudirect_by_the_module_or_by_dma_buf(tmp_path, module, driver, kernel, fit):
    tree, wish = Tree(tmp_path), asked(preflight={"expect": ["GPUDirect"]})
    tree.write("/proc/driver/nvidia/version", f"NVRM version: {driver}")
    tree.write("/proc/sys/kernel/osrelease", kernel)
    if module:
        tree.write(f"/sys/module/{module}/refcnt", 0)
    assert (judged(ib_gpudirect.CHECK, gpudirect.look(tree.machine(), wish), wish) == []) is fit
    assert ib_gpudirect.CHECK.wanted(wish)
    assert not ib_gpudirect.CHECK.wanted(asked())
