"""What memory the node has left: the kernel's MemAvailable, the job's control group, /dev/shm, and errors that its controllers count."""

from __future__ import annotations

import os
from typing import Any

from slurmtrain.preflight.machine import CannotTellError, Machine
from slurmtrain.preflight.parts import Facts, Source
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._cgroup import folders, number

_EDAC = "/sys/devices/system/edac/mc"


def look(machine: Machine, request: Request) -> Facts:  # noqa: ARG001 a source's signature
    known = _meminfo(machine)
    groups = [one for folder in folders(machine, "memory") if (one := _group(machine, folder)) is not None]
    return {
        "total_bytes": known["MemTotal"],
        "available_bytes": min([known["MemAvailable"], *(one["limit"] - one["used"] for one in groups)]),
        "limit_bytes": min([known["MemTotal"], *(one["limit"] for one in groups)]),
        "shm": _shm(machine),
        "uncorrected": {name: count for name in machine.names(_EDAC) if (count := number(machine, f"{_EDAC}/{name}/ue_count"))},
    }


def _meminfo(machine: Machine) -> dict[str, int]:
    """Bytes, from /proc/meminfo (proc(5)); its unit is kB, by which it means KiB."""
    lines = [line.split() for line in machine.text("/proc/meminfo").splitlines()]
    found = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) > 1}
    if not {"MemTotal", "MemAvailable"} <= found.keys():
        raise CannotTellError("/proc/meminfo has no MemAvailable", "use a kernel of 3.14 or newer, or skip memory-free")
    return found


def _group(machine: Machine, folder: str) -> dict[str, int] | None:
    """Limit and use of one control group, without what the kernel can take back at once; None where it has no limit."""
    limit = number(machine, f"{folder}/memory.max", f"{folder}/memory.limit_in_bytes")
    used = number(machine, f"{folder}/memory.current", f"{folder}/memory.usage_in_bytes")
    if limit is None or used is None:
        return None
    stat = dict(line.split(None, 1) for line in machine.text_or(f"{folder}/memory.stat").splitlines() if " " in line)
    cache = stat.get("total_inactive_file", stat.get("inactive_file", "0"))
    return {"limit": limit, "used": max(0, used - int(cache))}


def _shm(machine: Machine) -> dict[str, Any]:
    try:
        status = os.statvfs(machine.path("/dev/shm"))  # noqa: S108 named by POSIX shm_open on Linux
    except OSError as error:
        return {"error": error.strerror}
    return {"free_bytes": status.f_bavail * status.f_frsize, "total_bytes": status.f_blocks * status.f_frsize}


SOURCE = Source("memory", look, "the kernel does not answer: have the node rebooted")
