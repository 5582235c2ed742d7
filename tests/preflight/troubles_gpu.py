"""Troubles of GPUs, of their links, and of what the kernel's log says of them: a node of eight H100, one of which is odd."""

from __future__ import annotations

from typing import Any

from slurmtrain.preflight.sources.nvlink import parse_errors, parse_links
from slurmtrain.preflight.sources.xid import events, records
from tests.preflight.nvidia_shim import changed, nvlink, recorded, side_by_side, smi_facts
from tests.preflight.row import Row

LOG = side_by_side(recorded("h100.xml"), 8)
STATUS = nvlink(recorded("nvlink-h100.txt"), 8)
FACTS: dict[str, dict[str, Any]] = {
    "gpus": smi_facts(LOG),
    "nvlink": {"links": parse_links(STATUS), "errors": {}, "uptime_s": 1e6},
    "xid": {"readable": True, "said": "", "events": []},
}


def gpu(index: int = 3, **values: str) -> dict[str, Any]:
    """One GPU's elements of `nvidia-smi -q -x` are these."""
    return {"gpus": smi_facts(changed(LOG, index, **values))}


def said(text: str) -> dict[str, Any]:
    """nvidia-smi printed something else than a log."""
    return {"gpus": smi_facts(text)}


def status(old: str, new: str) -> dict[str, Any]:
    return {"nvlink": {"links": parse_links(STATUS.replace(old, new, 1))}}


def counter(name: str, count: int) -> dict[str, Any]:
    return {"nvlink": {"errors": parse_errors(f"GPU 3: NVIDIA H100 80GB HBM3 (UUID: GPU-0)\n\t Link 7: {name}: {count}\n")}}


def kernel(text: str, age_s: float = 100.0) -> dict[str, Any]:
    found = records(text)
    return {"xid": {"events": events(found, found[-1][0] + age_s)}}


def xid(number: int, text: str, age_s: float = 100.0) -> dict[str, Any]:
    return kernel(f"[ 5000.0] NVRM: Xid (PCI:0000:3b:00): {number}, pid=4711, name=python3, {text}\n", age_s)


PROGRAM = "<pid>4711</pid><type>C</type><process_name>/usr/bin/python3</process_name><used_memory>65710 MiB</used_memory>"
BUSY = LOG.replace("<processes>", f"<processes><process_info>{PROGRAM}</process_info>", 1)
NO_NODE_GPU = {"node": {"gpus": 8}}
LOST = "Unable to determine the device handle for GPU0000:17:00.0: Unknown Error\n"
UNHEALTHY = LOG.replace("<bandwidth>N/A", "<summary>Unhealthy</summary><bandwidth>Full", 1)
RECOVERS = LOG.replace("<bandwidth>N/A", "<route_recovery_in_progress>True</route_recovery_in_progress><bandwidth>Full", 1)
LESS = "GPU 3: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000-0000-0000-0000-000000000000)\n         Link 0: 26.562 GB/s\n"

ROWS = [
    Row("gpu-lost", "off the bus", said(LOST), "GPU 0000:17:00.0: Unknown Error"),
    Row("gpu-lost", "waits for its reset", gpu(gpu_temp="GPU requires reset"), "GPU 3: 00000000:DB:03.0: GPU requires reset: end what"),
    Row("gpu-lost", "infoROM", said(LOG + "WARNING: infoROM is corrupted at gpu 0000:DB:03.0\n"), "infoROM is corrupted", "warn"),
    Row("gpu-count", "one is gone", said(side_by_side(recorded("h100.xml"), 7)), "7 GPUs of 8 are there"),
    Row("gpu-count", "all are gone", {"gpus": {"gpus": [], "lost": []}}, "0 GPUs of 8"),
    Row("gpu-model", "another form", gpu(product_name="NVIDIA H100 PCIe"), "GPU 3: NVIDIA H100 PCIe, and node.gpu is NVIDIA H100 SXM"),
    Row("gpu-model", "another chip", gpu(product_name="NVIDIA H200"), "NVIDIA H200"),
    Row("gpu-model", "unlike the rest", gpu(product_name="NVIDIA A30"), "NVIDIA A30, most others", "warn", NO_NODE_GPU),
    Row("gpu-ecc", "DRAM", gpu(dram_uncorrectable="2"), "GPU 3: uncorrectable memory errors since the driver was loaded: 2 in DRAM"),
    Row("gpu-ecc", "SRAM", gpu(sram_uncorrectable_secded="1", sram_uncorrectable_parity="4"), "5 in SRAM"),
    Row("gpu-ecc", "too many", gpu(sram_threshold_exceeded="Yes"), "more errors of its SRAM than its maker allows"),
    Row("gpu-ecc", "off", gpu(current_ecc="Disabled"), "GPU 3: ECC is off"),
    Row("gpu-rows", "failed", gpu(remapped_row_failure="Yes"), "could not be remapped"),
    Row("gpu-rows", "pending", gpu(remapped_row_pending="Yes"), "waits to be remapped", "warn"),
    Row("gpu-rows", "page pending", gpu(pending_retirement="Yes"), "a page of its memory waits to be retired"),
    Row("gpu-rows", "pages", gpu(retired_count="64"), "64 pages of its memory are retired"),
    Row("gpu-rows", "no spares", gpu(row_remapper_histogram_none="1 bank(s)"), "1 banks of its memory have no spare rows", "warn"),
    Row("gpu-recovery", "reset", gpu(reset_required="Yes"), "its driver asks for: Reset"),
    Row("gpu-recovery", "drain", gpu(drain_and_reset_recommended="Yes"), "Drain and Reset"),
    Row("gpu-throttle", "heat", gpu(clocks_event_reason_hw_thermal_slowdown="Active"), "slows it down because of heat"),
    Row("gpu-throttle", "power", gpu(clocks_event_reason_hw_power_brake_slowdown="Active"), "power brake"),
    Row("gpu-throttle", "unsaid", gpu(clocks_event_reason_hw_slowdown="Active"), "the hardware slows it down"),
    Row("gpu-throttle", "warm", gpu(clocks_event_reason_sw_thermal_slowdown="Active"), "the driver slows it down", "warn"),
    Row("gpu-temperature", "too hot", gpu(gpu_temp="89 C", gpu_temp_tlimit="-3 C"), "89 C, at which the hardware slows it down"),
    Row("gpu-temperature", "hot", gpu(gpu_temp="84 C", gpu_temp_tlimit="2 C"), "84 C, 4 below", "warn"),
    Row("gpu-pcie", "lanes", gpu(current_link_width="8x"), "GPU 3: PCIe with 8 lanes of 16"),
    Row("gpu-pcie", "generation", gpu(current_link_gen="3"), "PCIe of generation 3, 5 could be", "warn"),
    Row("gpu-pcie", "slot", gpu(max_link_gen="3", current_link_gen="3"), "its slot can do PCIe generation 3, 5 on other nodes"),
    Row("gpu-replays", "many", gpu(replay_counter="13000000"), "13000000 replays on PCIe, 780 a minute"),
    Row("gpu-replays", "rollovers", gpu(replay_rollover_counter="4"), "4 rollovers", "warn"),
    Row("gpu-fabric", "not started", gpu(state="Not Started", status="N/A"), "has not joined the NVSwitch fabric: Not Started"),
    Row("gpu-fabric", "in progress", gpu(state="In Progress", status="N/A"), "In Progress: see `systemctl status nvidia-fabricmanager`"),
    Row("gpu-fabric", "refused", gpu(status="Insufficient Resources"), "Completed, Insufficient Resources"),
    Row("gpu-fabric", "silent", gpu(state="N/A", status="N/A"), "it is in no NVSwitch fabric, and others are"),
    Row("gpu-fabric", "unhealthy", said(UNHEALTHY), "GPU 0: NVLink fabric: summary Unhealthy"),
    Row("gpu-fabric", "recovers", said(RECOVERS), "route recovery in progress True", "warn"),
    Row("gpu-driver", "branch", said(LOG.replace("560.35.03", "535.161.08")), "driver 535.161.08, 560.35.03 on other nodes"),
    Row("gpu-driver", "release", said(LOG.replace("560.35.03", "560.28.03")), "driver 560.28.03", "warn"),
    Row("gpu-vbios", "older", gpu(vbios_version="96.00.74.00.10"), "GPU 3: VBIOS 96.00.74.00.10, 96.00.A5.00.01 on most others", "warn"),
    Row("gpu-power", "limited", gpu(current_power_limit="400.00 W"), "GPU 3: limited to 400 W, most others to 700", "warn"),
    Row("gpu-busy", "a program", said(BUSY), "GPU 0: python3 (pid 4711) computes on it: end it"),
    Row("gpu-busy", "memory", gpu(used="46080 MiB"), "45.0 GiB of its memory are in use, by no program that can be seen"),
    Row("gpu-mig", "on", gpu(current_mig="Enabled"), "GPU 3: MIG is on"),
    Row("gpu-compute-mode", "prohibited", gpu(compute_mode="Prohibited"), "its compute mode is Prohibited"),
    Row("gpu-persistence", "off", gpu(persistence_mode="Disabled"), "persistence mode is off", "warn"),
    Row("nvlink-links", "one is down", status(LESS, LESS.replace("26.562 GB/s", "<inactive>")), "GPU 3: 17 NVLinks of 18 are up"),
    Row("nvlink-links", "one is slow", status(LESS, LESS.replace("26.562", "13.281")), "GPU 3: NVLink 0 at 13.281 GB/s, others at 26.562"),
    Row("nvlink-links", "fewer", status(LESS, LESS.replace("26.562 GB/s", "<inactive>")), "17 NVLinks of 18", site=NO_NODE_GPU),
    Row("nvlink-errors", "recoveries", counter("Recovery Errors", 505), "GPU 3: NVLink 7: Recovery Errors 505"),
    Row("nvlink-errors", "failed", counter("Link recovery failed events", 1), "Link recovery failed events 1"),
    Row("nvlink-errors", "a recovery", counter("Link recovery successful events", 1), "successful events 1", "warn"),
    Row("nvlink-errors", "CRC", counter("CRC Errors", 65535), "CRC Errors 65535"),
    Row("nvlink-errors", "replays", counter("Replay Errors", 2353), "Replay Errors 2353", "warn"),
    Row("gpu-xid", "off the bus", kernel(recorded("dmesg-xid79.txt")), "PCI 0000:09:00: Xid 79, 00:01:40 ago: GPU has fallen off the bus"),
    Row("gpu-xid", "never probed", kernel(recorded("dmesg-no-xid.txt")), "Xid 79"),
    Row("gpu-xid", "double bit error", xid(48, "An uncorrectable double bit error (DBE) has been detected"), "Xid 48"),
    Row("gpu-xid", "long ago", xid(48, "An uncorrectable double bit error", 2 * 86400.0), "Xid 48, 2-00:00:00 ago", "warn"),
    Row("gpu-xid", "GSP", xid(119, "Timeout after 45s of waiting for RPC response from GPU0 GSP!"), "Xid 119"),
    Row("gpu-xid", "recovery", xid(154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"), "reboot the node"),
    Row("gpu-xid", "worn", xid(63, "Row Remapper: New row marked for remapping, reset gpu to activate."), "Xid 63", "warn"),
    Row("gpu-xid", "contained", xid(94, "Contained ECC error"), "Xid 94", "warn"),
    Row("gpu-xid", "newer", xid(230, "something that this release has not heard of"), "Xid 230", "warn"),
    Row("gpu-xid", "NVLink 5", kernel(recorded("dmesg-nvlink5.txt")), "PCI 0019:01:00: Xid 149"),
    Row("gpu-xid", "NVSwitch", kernel(recorded("dmesg-sxid.txt")), "SXid 24007"),
    Row("gpu-xid", "unread", {"xid": {"readable": False, "said": "dmesg: read kernel buffer failed"}}, "cannot be read: dmesg", "warn"),
]
