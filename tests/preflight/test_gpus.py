"""What the sources of GPUs see: recorded outputs of real machines, printed by real programs, through the real shell."""

from __future__ import annotations

import pytest

from slurmtrain.preflight.machine import CannotTellError
from slurmtrain.preflight.sources import gpus, nvlink
from slurmtrain.preflight.sources._nvidia import limit_s
from tests.fakes.clock import FakeClock
from tests.preflight.nvidia_shim import Node, changed, recorded, request, side_by_side

SMI = "nvidia-smi -q -x"
LOST = "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot the system to recover this GPU\n"
UNKNOWN = "Unable to determine the device handle for GPU0000:17:00.0: Unknown Error\n"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.126\n"
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed "
    "and running.\n"
)


def look(node: Node, **more):
    return gpus.look(node.machine(), request(**more))


def test_a_healthy_h100_is_read_from_one_call(tmp_path):
    node = Node(tmp_path).says(SMI, recorded("h100.xml"))
    facts = look(node)
    gpu = facts["gpus"][0]
    assert node.asked("nvidia-smi") == [SMI]
    assert (facts["driver"], facts["cuda"], facts["lost"], facts["warnings"], facts["uptime_s"]) == ("560.35.03", "12.6", [], [], 1e6)
    assert (gpu["index"], gpu["name"], gpu["bus"], gpu["vbios"]) == (0, "NVIDIA H100 80GB HBM3", "00000000:DB:00.0", "96.00.A5.00.01")
    assert (gpu["pcie_gen"], gpu["pcie_gen_max"], gpu["pcie_width"], gpu["pcie_width_max"], gpu["replays"]) == (5, 5, 16, 16, 6)
    assert (gpu["memory_mib"], gpu["used_mib"], gpu["ecc"], gpu["uncorrectable"]) == (81559, 1, "Enabled", {"dram": 0, "sram": 0})
    assert (gpu["temp_c"], gpu["headroom_c"], gpu["memory_temp_c"], gpu["memory_max_c"]) == (34, 55, 40, None)
    assert gpu["fabric"] == {
        "state": "Completed",
        "status": "Success",
        "cliqueId": "0",
        "clusterUuid": "00000000-0000-0000-0000-000000000000",
    }
    assert gpu["power_limit_w"] == 700
    assert (gpu["throttle"], gpu["pstate"], gpu["dead"], gpu["recovery"], gpu["processes"]) == (["gpu_idle"], "P0", "", "", [])


def test_older_drivers_have_other_names_for_the_same(tmp_path):
    old = look(Node(tmp_path / "old").says(SMI, recorded("h800.xml")))["gpus"][0]
    brake = look(Node(tmp_path / "brake").says(SMI, recorded("a10-power-brake.xml")))["gpus"][0]
    assert (old["throttle"], old["headroom_c"], old["memory_max_c"], old["power_limit_w"]) == (["gpu_idle"], 54, 95, 700)
    assert (old["ecc"], old["uncorrectable"]) == ("Disabled", {"dram": 0, "sram": 0})
    assert brake["throttle"] == ["gpu_idle", "hw_slowdown", "hw_power_brake_slowdown"]
    assert (brake["headroom_c"], brake["mig"], brake["fabric"]) == (65, "", {})


def test_what_is_seen_of_slices_and_of_programs(tmp_path):
    mig = look(Node(tmp_path / "mig").says(SMI, recorded("a100-mig.xml")))["gpus"]
    busy = look(Node(tmp_path / "busy").says(SMI, recorded("rtx-pro-6000-busy.xml")))["gpus"][0]
    assert [(gpu["mig"], gpu["persistence"], gpu["used_mib"], gpu["remap_pending"]) for gpu in mig] == [("Enabled", "Disabled", 50, "")]
    assert busy["processes"] == [{"pid": 116860, "type": "C", "name": "/root/src/llama.cpp/build/bin/llama-server", "mib": 65710}]
    assert (busy["used_mib"], busy["pcie_gen"], busy["pcie_gen_max"]) == (65720, 1, 4)


def test_what_a_killed_rank_leaves_is_waited_for(tmp_path):
    class Leaves(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if len(self.slept) == 2:
                node.says(SMI, recorded("h100.xml"))

    node = Node(tmp_path, clock=Leaves()).says(SMI, recorded("rtx-pro-6000-busy.xml"))
    assert look(node)["gpus"][0]["processes"] == []
    assert node.asked("nvidia-smi") == [SMI] * 3


def test_a_program_that_stays_is_waited_for_as_long_as_the_source_may_and_one_of_another_job_is_not(tmp_path):
    busy = side_by_side(recorded("rtx-pro-6000-busy.xml"), 4)
    node = Node(tmp_path / "a").says(SMI, busy)
    assert len(look(node)["gpus"][0]["processes"]) == 1
    assert 0 < sum(node.clock.slept) <= limit_s(request()) - gpus.LEAVE_S
    shared = Node(tmp_path / "b").says(SMI, busy)
    look(shared, gpus=2, slurm={"exclusive": False})
    assert shared.clock.slept == []


@pytest.mark.parametrize(("said", "lost"), [(LOST, "0000:02:00.0: GPU is lost"), (UNKNOWN, "0000:17:00.0: Unknown Error")])
def test_a_gpu_without_a_handle_is_named_though_there_is_no_log(tmp_path, said, lost):
    facts = look(Node(tmp_path).says(SMI, said, rc=15))
    assert (facts["lost"], facts["gpus"]) == ([lost], [])


def test_a_gpu_that_waits_for_its_reset_says_so_in_the_place_of_values(tmp_path):
    log = changed(side_by_side(recorded("h100.xml"), 2), 1, remapped_row_pending="GPU requires reset")
    assert [gpu["dead"] for gpu in look(Node(tmp_path).says(SMI, log))["gpus"]] == ["", "GPU requires reset"]
    board = changed(recorded("h100.xml"), 0, fan_speed="[Unknown Error]")
    assert look(Node(tmp_path / "fan").says(SMI, board))["gpus"][0]["dead"] == "", "a board without fans"
    gone = changed(recorded("h100.xml"), 0, gpu_temp="Unknown Error")
    assert look(Node(tmp_path / "gone").says(SMI, gone))["gpus"][0]["dead"] == "Unknown Error"


def test_a_log_that_is_there_counts_whatever_is_said_after_it(tmp_path):
    warned = recorded("h100.xml") + "WARNING: infoROM is corrupted at gpu 0000:DB:00.0\n"
    facts = look(Node(tmp_path).says(SMI, warned, rc=14))
    assert (len(facts["gpus"]), facts["warnings"]) == (1, ["WARNING: infoROM is corrupted at gpu 0000:DB:00.0"])


def test_no_gpu_at_all_is_a_fact(tmp_path):
    assert look(Node(tmp_path).says(SMI, "No devices were found\n", rc=6))["gpus"] == []


@pytest.mark.parametrize(
    ("said", "rc", "words", "remedy"),
    [
        (MISMATCH, 18, "Driver/library version mismatch", "reboot the node, or unload the nvidia modules"),
        (NO_DRIVER, 9, "couldn't communicate", "modprobe nvidia"),
        ("<nvidia_smi_log><gpu>", 0, "<nvidia_smi_log><gpu>", "dmesg"),
        ("<nvidia_smi_log><gpu></nvidia_smi_log>", 0, "nvidia-smi -q -x", "dmesg"),
        ('<?xml version="1.0" ?>\n<nvidia_smi_log><gpu>', 0, "nvidia-smi -q -x: its log breaks off", "dmesg"),
        ("", 255, "exit code 255", "dmesg"),
    ],
)
def test_a_driver_that_says_nothing_is_unknown_with_its_own_remedy(tmp_path, said, rc, words, remedy):
    with pytest.raises(CannotTellError) as caught:
        look(Node(tmp_path).says(SMI, said, rc=rc))
    assert words in caught.value.said
    assert remedy in caught.value.remedy
    assert "\n" not in caught.value.said + caught.value.remedy


def test_a_node_without_nvidia_smi_is_told_how_to_say_that_its_gpus_are_others(tmp_path):
    with pytest.raises(CannotTellError) as caught:
        look(Node(tmp_path))
    assert caught.value.said == "no nvidia-smi on the node"
    assert "node.gpu" in caught.value.remedy


@pytest.mark.parametrize(("source", "command"), [(gpus, SMI), (nvlink, "nvidia-smi nvlink -s")])
def test_a_driver_that_hangs_is_given_up_before_the_source_itself_would_be(tmp_path, source, command):
    asked = request(preflight={"timeout_s": 0.3})
    with pytest.raises(CannotTellError) as caught:
        source.look(Node(tmp_path).hangs("nvidia-smi").machine(), asked)
    assert caught.value.said == f"{command}: no answer in time"
    assert caught.value.remedy == source.SOURCE.late
    assert limit_s(asked) < 0.3
    assert limit_s(request()) < source.SOURCE.timeout_s


@pytest.mark.parametrize(
    ("gpu", "device", "wanted"), [("NVIDIA H100 SXM", "cuda", True), ("AMD MI300X", "cuda", False), (None, "cpu", False)]
)
def test_only_sites_with_gpus_of_nvidia_are_looked_at(gpu, device, wanted):
    asked = request(gpu, device=device)
    assert (gpus.SOURCE.wanted(asked), nvlink.SOURCE.wanted(asked)) == (wanted, wanted)
    assert not nvlink.SOURCE.wanted(request("NVIDIA GH200 SXM", gpus=1)), "nobody to be linked to"


def test_a_driver_that_prints_without_end_is_told_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr("slurmtrain.shell.PRINTED_BYTES", 1 << 10)
    with pytest.raises(CannotTellError, match="its log breaks off nvidia-smi: it prints without end"):
        look(Node(tmp_path).says(SMI, "<gpu> " * 1000))
