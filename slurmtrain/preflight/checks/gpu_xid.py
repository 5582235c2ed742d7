"""What the driver wrote into the kernel's log about its GPUs (Xid) and NVSwitches (SXid) since the boot.

| numbers | what it was | grade |
|---|---|---|
| `FATAL`; "Fatal" in 144 to 150 and SXid; 154 unless "None" | hardware, or a driver that needs a reset | fail, and warn after a day |
| `WATCHED` | memory that is worn out or on its way there; links | warn |
| those after `KNOWN` | newer than this list | warn |
| all others, 13, 31, 43, 45 among them | a program's own fault, what follows from another's, or nothing | nothing |

After a day whoever brought the node back into service knew why.

Source: NVIDIA's catalogue, docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html: FATAL are those whose immediate action is
RESET_GPU, RESTART_BM or RESTART_VM, and 74 (NVLink, a workflow of its own); programs' are RESTART_APP and IGNORE.

Who may not read the log is told so once: it is no fault of a node, but this check was not made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slurmtrain.preflight.checks._gpus import DAY_S, told_once
from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._nvidia import nvidia
from slurmtrain.units import format_duration

FATAL = frozenset({46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158})
WATCHED = frozenset({54, 63, 92, 94, 121, 137, 157, 167, 168, 171, 172})
BY_WORD = frozenset(range(144, 151))
RECOVERY = 154
KNOWN = 172
REBOOT = frozenset({79, 119, 120, 151})
_RESET = "drain the node and reset the GPU (`nvidia-smi -r`), else reboot; where it comes again, have the GPU replaced"
_REBOOT = "reboot the node; where it comes again, have the GPU reseated or replaced"
_SWITCH = "reset all GPUs of the node together, or reboot; where it comes again, have the baseboard replaced"
_WATCH = "watch it: `nvidia-smi -q -d ECC,ROW_REMAPPER`, `nvidia-smi nvlink -e`; the catalogue of Xids says what it was"
_UNREAD = "sysctl kernel.dmesg_restrict=0, or let users into the group systemd-journal; or name gpu-xid in preflight.skip of the site"


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:  # noqa: ARG001 a check's signature
    kinds: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for event in facts["events"]:
        kinds.setdefault((event["kind"], event["number"], event["fatal"]), []).append(event)
    for same in kinds.values():
        yield from _troubles(same)


def _troubles(same: Sequence[Mapping[str, Any]]) -> Iterator[Trouble]:
    """Of events that differ in the device alone, the last of them last."""
    last, count, age = same[-1], sum(event["count"] for event in same), same[-1]["age_s"]
    when = "" if age is None else f", {format_duration(age)} ago"
    times = f", {count} times" if count > 1 else ""
    said = f"{last['kind']} {last['number']}{times}{when}: {last['said']}".rstrip(": ")
    item = f"PCI {' '.join(event['pci'] for event in same)}"
    if fatal(last):
        fresh = age is None or age < DAY_S
        yield Trouble("fail" if fresh else "warn", said, _remedy(last), item)
    elif last["kind"] == "Xid" and (last["number"] in WATCHED or last["number"] > KNOWN):
        yield Trouble("warn", said, _WATCH, item)


def fatal(event: Mapping[str, Any]) -> bool:
    """Whether nobody should compute there before a reset."""
    if event["kind"] == "SXid" or event["number"] in BY_WORD:
        return bool(event["fatal"])
    return event["number"] in FATAL or event["number"] == RECOVERY


def _remedy(event: Mapping[str, Any]) -> str:
    if event["kind"] == "SXid":
        return _SWITCH
    return _REBOOT if event["number"] in REBOOT or "eboot" in event["said"] else _RESET


def compare(facts: Mapping[str, Facts], request: Request) -> Iterator[tuple[str, Trouble]]:  # noqa: ARG001 a check's signature
    unread = {node: str(known["said"]) for node, known in facts.items() if not known["readable"]}
    for said in list(unread.values())[:1]:
        yield from told_once(list(unread), Trouble("warn", f"the kernel's log cannot be read: {said}", _UNREAD))


CHECK = Check("gpu-xid", "xid", "no Xid of a GPU or NVSwitch that needs a reset", judge, compare, wanted=nvidia)
