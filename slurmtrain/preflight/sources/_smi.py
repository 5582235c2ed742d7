"""What `nvidia-smi -q -x` printed, as facts. Pure.

One element tree for all drivers: names that changed are looked for under each of them (`clocks_throttle_reasons` until driver 530,
`clocks_event_reasons` since; thresholds in degrees until Ada, as a margin, "T.Limit", since). What is not there, or "N/A", is None or an
empty word, so that a check can be silent about it. Sources: `man nvidia-smi`, and the recordings in tests/preflight/recorded/nvidia.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from xml.etree.ElementTree import Element, ParseError, fromstring

_ABSENT = frozenset({"", "N/A", "[N/A]", "Not Supported", "[Not Supported]", "Requested functionality has been deprecated"})
_DEAD = re.compile(r"GPU is lost|GPU requires reset", re.IGNORECASE)
"""In the place of any value: the driver has given this GPU up."""
_NO_VALUE = re.compile(r"Unknown Error|ERR!")
"""The same, where it stands for a value that every GPU has; one that a board does not have may say so in good health."""
_VITAL = ("temperature/gpu_temp", "fb_memory_usage/used", "pci/pci_gpu_link_info/link_widths/current_link_width")
_LOST = re.compile(r"Unable to determine the device handle for GPU\s*(?:\d+:\s+)?([0-9A-Fa-f:.]+):\s*([^\n]+)")
_UNCORRECTABLE = {
    "dram": ("dram_uncorrectable", "double_bit/device_memory"),
    "sram": (
        "sram_uncorrectable",
        "sram_uncorrectable_parity",
        "sram_uncorrectable_secded",
        "double_bit/register_file",
        "double_bit/l1_cache",
        "double_bit/l2_cache",
    ),
}


def parse_smi(text: str) -> dict[str, Any]:
    """Of all GPUs: `driver`, `cuda`, `gpus` (a dict each, in nvidia-smi's order), `lost` (of those without a handle), `warnings`.

    Raises ValueError where there is no whole log in the text.
    """
    start, end = text.find("<nvidia_smi_log"), text.rfind("</nvidia_smi_log>")
    if start < 0 or end < 0:
        raise ValueError("no <nvidia_smi_log> in what it printed")
    try:
        log = fromstring(text[start : end + len("</nvidia_smi_log>")])  # noqa: S314 what the driver's own program printed
    except ParseError as error:
        raise ValueError(f"what it printed is no XML: {error}") from None
    around = text[:start] + text[end:]
    return {
        "driver": _word(log, "driver_version"),
        "cuda": _word(log, "cuda_version"),
        "gpus": [_gpu(index, gpu) for index, gpu in enumerate(log.iter("gpu"))],
        "lost": lost_gpus(around),
        "warnings": [line.strip() for line in around.splitlines() if line.strip().startswith("WARNING")],
    }


def lost_gpus(text: str) -> list[str]:
    """The GPUs that have no handle any more: "0000:BA:00.0: GPU is lost".

    >>> lost_gpus("Unable to determine the device handle for GPU0000:BA:00.0: Unknown Error\\nNo devices were found")
    ['0000:BA:00.0: Unknown Error']
    """
    return [f"{bus}: {said.split('.')[0].strip()}" for bus, said in _LOST.findall(text)]


def _gpu(index: int, gpu: Element) -> dict[str, Any]:
    return {
        "index": index,
        "bus": gpu.get("id", ""),
        "name": _word(gpu, "product_name"),
        "uuid": _word(gpu, "uuid"),
        "vbios": _word(gpu, "vbios_version"),
        "persistence": _word(gpu, "persistence_mode"),
        "compute_mode": _word(gpu, "compute_mode"),
        "mig": _word(gpu, "mig_mode/current_mig"),
        "recovery": _recovery(gpu),
        "dead": _dead(gpu),
        "pstate": _word(gpu, "performance_state"),
        "throttle": list(_throttle(gpu)),
        "power_limit_w": _power_limit(gpu),
        **_pcie(gpu),
        **_memory(gpu),
        **_ecc(gpu),
        **_rows(gpu),
        **_temperature(gpu),
        "fabric": _fabric(gpu),
        "processes": [_process(one) for one in gpu.iterfind("processes/process_info")],
    }


def _recovery(gpu: Element) -> str:
    """What the driver wants done before this GPU works again: gpu_recovery_action since driver 565, gpu_reset_status before."""
    if _word(gpu, "gpu_reset_status/reset_required") == "Yes":
        return "Reset"
    if _word(gpu, "gpu_reset_status/drain_and_reset_recommended") == "Yes":
        return "Drain and Reset"
    action = _word(gpu, "gpu_recovery_action")
    return "" if action == "None" else action


def _dead(gpu: Element) -> str:
    for part in gpu.iter():
        if found := _DEAD.search(part.text or ""):
            return found.group(0)
    vital = (gpu.findtext(path) or "" for path in _VITAL)
    return next((found.group(0) for text in vital if (found := _NO_VALUE.search(text))), "")


def _throttle(gpu: Element) -> Iterator[str]:
    for folder in ("clocks_event_reasons", "clocks_throttle_reasons"):
        for reason in gpu.iterfind(f"{folder}/*"):
            if (reason.text or "").strip() == "Active":
                yield reason.tag.rpartition("_reason_")[2]


def _power_limit(gpu: Element) -> int | None:
    found = (_number(gpu, path) for path in ("gpu_power_readings/current_power_limit", "power_readings/power_limit"))
    return next((watts for watts in found if watts is not None), None)


def _pcie(gpu: Element) -> dict[str, Any]:
    link = "pci/pci_gpu_link_info"
    return {
        "pcie_gen": _number(gpu, f"{link}/pcie_gen/current_link_gen"),
        "pcie_gen_max": _number(gpu, f"{link}/pcie_gen/max_link_gen"),
        "pcie_width": _number(gpu, f"{link}/link_widths/current_link_width"),
        "pcie_width_max": _number(gpu, f"{link}/link_widths/max_link_width"),
        "replays": _number(gpu, "pci/replay_counter"),
        "rollovers": _number(gpu, "pci/replay_rollover_counter"),
    }


def _memory(gpu: Element) -> dict[str, Any]:
    return {"memory_mib": _number(gpu, "fb_memory_usage/total"), "used_mib": _number(gpu, "fb_memory_usage/used")}


def _ecc(gpu: Element) -> dict[str, Any]:
    """`uncorrectable`: since the driver was loaded, by kind of memory."""
    counts = {kind: [_number(gpu, f"ecc_errors/volatile/{path}") for path in paths] for kind, paths in _UNCORRECTABLE.items()}
    return {
        "ecc": _word(gpu, "ecc_mode/current_ecc"),
        "uncorrectable": {kind: sum(count or 0 for count in found) for kind, found in counts.items()},
        "sram_threshold": _word(gpu, "ecc_errors/aggregate/sram_threshold_exceeded"),
        "unrepairable": _word(gpu, "ecc_errors/unrepairable_memory"),
        "repairs": [what for what in ("channel", "tpc") if _word(gpu, f"ecc_errors/{what}_repair_pending") == "Yes"],
    }


def _rows(gpu: Element) -> dict[str, Any]:
    pages, rows = "retired_pages", "remapped_rows"
    kinds = ("multiple_single_bit_retirement", "double_bit_retirement")
    return {
        "retired": sum(_number(gpu, f"{pages}/{kind}/retired_count") or 0 for kind in kinds),
        "retirement_pending": _word(gpu, f"{pages}/pending_retirement") or _word(gpu, f"{pages}/pending_blacklist"),
        "remap_pending": _word(gpu, f"{rows}/remapped_row_pending"),
        "remap_failure": _word(gpu, f"{rows}/remapped_row_failure"),
        "banks_without_spares": _number(gpu, f"{rows}/row_remapper_histogram/row_remapper_histogram_none") or 0,
    }


def _temperature(gpu: Element) -> dict[str, Any]:
    """`headroom_c`: degrees that are left until the hardware slows the GPU down."""
    temp, margin = _number(gpu, "temperature/gpu_temp"), _number(gpu, "temperature/gpu_temp_tlimit")
    margin_slow, slow = (_number(gpu, f"temperature/gpu_temp_slow_{name}threshold") for name in ("tlimit_", ""))
    headroom = None
    if margin is not None and margin_slow is not None:
        headroom = margin - margin_slow
    elif temp is not None and slow is not None:
        headroom = slow - temp
    return {
        "temp_c": temp,
        "headroom_c": headroom,
        "memory_temp_c": _number(gpu, "temperature/memory_temp"),
        "memory_max_c": _number(gpu, "temperature/gpu_temp_max_mem_threshold"),
    }


def _fabric(gpu: Element) -> dict[str, str]:
    """`state`, `status`, `clusterUuid`, `cliqueId`, and what stands under `health`; words that say nothing are left out."""
    parts = [*gpu.iterfind("fabric/*"), *gpu.iterfind("fabric/health/*")]
    return {part.tag: text for part in parts if (text := (part.text or "").strip()) not in _ABSENT}


def _process(one: Element) -> dict[str, Any]:
    return {
        "pid": _number(one, "pid"),
        "type": _word(one, "type"),
        "name": _word(one, "process_name"),
        "mib": _number(one, "used_memory"),
    }


def _word(parent: Element, path: str) -> str:
    text = (parent.findtext(path) or "").strip()
    return "" if text in _ABSENT else text


def _number(parent: Element, path: str) -> int | None:
    """The number at the beginning: "16x", "81559 MiB", "-2 C"."""
    found = re.match(r"-?\d+", _word(parent, path))
    return int(found.group(0)) if found else None
