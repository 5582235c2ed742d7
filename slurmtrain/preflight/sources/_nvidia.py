"""What the sources of NVIDIA's GPUs share: where they make sense, how long they may ask, and what nvidia-smi's refusals mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurmtrain.preflight.machine import CannotTellError, Machine
from slurmtrain.preflight.request import Request
from slurmtrain.shell import RC_NOT_FOUND, RC_TIMED_OUT, Completed

SOURCE_S = 20.0
"""Of a source. Without persistence mode the driver initialises each GPU anew: some seconds for eight."""
PROGRAM_SHARE = 0.8
"""Of it that its programs may take together, so that the source ends them itself."""
_REFUSALS = (
    (
        "version mismatch",
        "the driver was updated while its modules were loaded: reboot the node, or unload the nvidia modules and load them again",
    ),
    ("communicate with the NVIDIA driver", "the driver is not loaded: `modprobe nvidia`, and see `dkms status` and `dmesg`"),
    ("libnvidia-ml", "the driver's libraries are not installed, or not in ld.so's path: install the driver of the loaded modules"),
    ("Insufficient Permissions", "the user may not open /dev/nvidia*: see their modes, and the devices that the job's cgroup lets in"),
)
_DRIVER = "see `dmesg | grep -i nvrm` on the node; reload the driver, or reboot"
_MISSING = "install the driver of the GPUs there; where they are not NVIDIA's, name them in node.gpu of the site"
_DAEMONS = ("nvidia-cuda-mps", "nv-hostengine", "dcgm")
LATE = "the driver hangs: see `dmesg | grep -i xid` on the node, and reboot it"


def nvidia(request: Request) -> bool:
    """Whether the GPUs of this site are NVIDIA's. A site that does not name them (node.gpu) is taken for one."""
    name = request.site.node.gpu
    return request.on_gpus and (name is None or name.upper().startswith("NVIDIA"))


def limit_s(request: Request) -> float:
    """Seconds that the programs of one source may take together."""
    return PROGRAM_SHARE * min(SOURCE_S, request.site.preflight.timeout_s)


def refused(done: Completed) -> CannotTellError:
    """Why nvidia-smi gave nothing, and what to do."""
    command = " ".join(done.argv)
    if done.rc == RC_NOT_FOUND:
        return CannotTellError("no nvidia-smi on the node", _MISSING)
    if done.rc == RC_TIMED_OUT:
        return CannotTellError(f"{command}: no answer in time", LATE)
    said = " ".join(f"{done.out}\n{done.err}".split()) or f"it printed nothing, exit code {done.rc}"
    if done.rc < 0 or said.startswith("<?xml"):
        said = " ".join([*(["its log breaks off"] if done.out else []), *done.err.splitlines()[-1:]]) or f"ended by signal {-done.rc}"
    remedy = next((remedy for words, remedy in _REFUSALS if words in said), _DRIVER)
    return CannotTellError(f"{command}: {said[:160]}", remedy)


def computing(gpu: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The programs that compute on a GPU, of `_smi`'s facts; not those that draw, and no daemons."""
    return [one for one in gpu["processes"] if "C" in one["type"] and not any(name in one["name"] for name in _DAEMONS)]


def all_ours(facts: Mapping[str, Any], request: Request) -> bool:
    """Whether all GPUs that are seen are the job's: on a shared node that shows more than the job has nobody can say which are."""
    return request.site.slurm.exclusive or not len(facts["gpus"]) > request.gpus_per_node > 0


def uptime_s(machine: Machine) -> float | None:
    """Seconds since the node was booted."""
    first = machine.text_or("/proc/uptime").partition(" ")[0]
    try:
        return float(first)
    except ValueError:
        return None
