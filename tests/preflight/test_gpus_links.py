"""What the sources of NVLink and of the kernel's log see: recorded outputs of real machines."""

from __future__ import annotations

import pytest

from slurmtrain.preflight.machine import CannotTellError
from slurmtrain.preflight.sources import nvlink, xid
from tests.preflight.nvidia_shim import Node, recorded, request

STATUS, COUNTERS = "nvidia-smi nvlink -s", "nvidia-smi nvlink -e"
JOURNAL = "journalctl -k -b -q --no-pager -o short-monotonic"
DENIED = "dmesg: read kernel buffer failed: Operation not permitted\n"


def links(node: Node):
    return nvlink.look(node.machine(), request())


def log(node: Node):
    return xid.look(node.machine(), request())


def test_links_that_are_up_and_their_counters(tmp_path):
    facts = links(Node(tmp_path).says(STATUS, recorded("nvlink-h100.txt")).says(COUNTERS, recorded("nvlink-errors-h100.txt")))
    assert facts["links"] == {"0": {str(link): 26.562 for link in range(18)}}
    assert (facts["errors"], facts["uptime_s"]) == ({}, 1e6)


def test_a_gpu_without_a_bridge_has_no_links_and_one_link_may_be_down(tmp_path):
    facts = links(Node(tmp_path / "a").says(STATUS, recorded("nvlink-bridge.txt")))
    assert [len(up) for up in facts["links"].values()] == [4, 4, 0]
    down = recorded("nvlink-a100.txt").replace("Link 3: 25 GB/s", "Link 3: <inactive>")
    assert links(Node(tmp_path / "b").says(STATUS, down))["links"]["0"]["3"] is None


def test_counters_that_are_not_0_are_kept_and_what_healthy_links_count_is_not(tmp_path):
    node = Node(tmp_path).says(STATUS, recorded("nvlink-h100.txt")).says(COUNTERS, recorded("nvlink-errors-v100.txt"))
    assert links(node)["errors"] == {
        "0": {"3": {"Replay Errors": 2353}},
        "2": {"0": {"Replay Errors": 148, "CRC Errors": 65535}},
    }
    blackwell = """GPU 0: NVIDIA B200 (UUID: GPU-0)
         Link 0: Tx packets: 12345
         Link 0: Link recovery successful events: 505
         Link 0: Effective BER: 15e-255
         Link 0: FEC Errors - 0: 17941761
         Link 0: PLR Xmit Blocks: 1234567890
"""
    assert nvlink.parse_errors(blackwell) == {"0": {"0": {"Link recovery successful events": 505}}}


def test_a_driver_that_says_nothing_of_nvlink_is_unknown(tmp_path):
    with pytest.raises(CannotTellError, match="version mismatch"):
        links(Node(tmp_path).says(STATUS, "Failed to initialize NVML: Driver/library version mismatch\n", rc=18))


def test_the_last_word_on_a_gpu_that_fell_off_the_bus(tmp_path):
    facts = log(Node(tmp_path, uptime_s=1084556.0).says("dmesg", recorded("dmesg-xid79.txt")))
    assert facts["readable"]
    assert [(e["kind"], e["number"], e["pci"], e["count"], e["said"]) for e in facts["events"]] == [
        ("Xid", 79, "0000:09:00", 1, "GPU has fallen off the bus.")
    ]
    assert facts["events"][0]["age_s"] == pytest.approx(100, abs=0.1)


def test_a_gpu_that_could_not_be_probed_counts_as_one_that_fell_off_the_bus(tmp_path):
    events = log(Node(tmp_path).says("dmesg", recorded("dmesg-no-xid.txt")).says(JOURNAL, "", rc=1))["events"]
    assert [(e["number"], e["pci"]) for e in events] == [(79, "0000:b3:00.0")], "it belongs to the load that is named after it"


def test_fatal_is_what_the_driver_calls_so(tmp_path):
    nvlink5 = log(Node(tmp_path / "a").says("dmesg", recorded("dmesg-nvlink5.txt")))["events"]
    switch = log(Node(tmp_path / "b").says("dmesg", recorded("dmesg-sxid.txt")))["events"]
    assert [(e["number"], e["fatal"]) for e in nvlink5] == [(145, False), (149, True), (45, False), (45, False)]
    assert [(e["kind"], e["number"], e["fatal"]) for e in switch] == [("SXid", 20009, False), ("SXid", 28006, False), ("SXid", 24007, True)]


def test_what_was_healed_is_forgotten_and_equal_events_are_one(tmp_path):
    worn = "[ {t}.0] NVRM: Xid (PCI:0000:3b:00): 63, pid=1, name=python3, Row Remapper: New row marked for remapping\n"
    other = "[ 300.0] NVRM: Xid (PCI:0000:4b:00): 48, pid=1, An uncorrectable double bit error\n"
    reset = "[ 400.0] NVRM: Xid (PCI:0000:4b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)\n"
    text = worn.format(t=200) + other + worn.format(t=350) + reset
    assert [(e["number"], e["count"]) for e in log(Node(tmp_path / "a").says("dmesg", text))["events"]] == [(63, 2)]
    reloaded = text + "[ 900.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.158.01\n"
    assert log(Node(tmp_path / "b").says("dmesg", reloaded))["events"] == []


def test_a_log_that_is_kept_from_users_is_looked_for_in_the_journal(tmp_path):
    node = Node(tmp_path).says("dmesg", err=DENIED, rc=1)
    journal = recorded("dmesg-xid79.txt").replace("] NVRM", "] n1 kernel: NVRM")
    assert [e["number"] for e in log(node.says(JOURNAL, journal))["events"]] == [79]


def test_a_log_that_nobody_lets_us_read_is_a_fact_and_no_fault(tmp_path):
    node = Node(tmp_path).says("dmesg", err=DENIED, rc=1)
    node.says(JOURNAL, err="No journal files were opened due to insufficient permissions.\n", rc=1)
    assert log(node) == {"readable": False, "said": "dmesg: read kernel buffer failed: Operation not permitted", "events": []}


def test_a_ring_that_was_written_over_gives_way_to_the_journal(tmp_path):
    late = "[90000.0] eth0: link up\n"
    node = Node(tmp_path).says("dmesg", late).says(JOURNAL, recorded("dmesg-xid79.txt"))
    assert [e["number"] for e in log(node)["events"]] == [79]
    assert log(Node(tmp_path / "b").says("dmesg", late).says(JOURNAL, "", rc=1))["readable"], "better than nothing"
