"""What the kernel's log says of GPUs (Xid) and NVSwitches (SXid) since the node was booted: `dmesg`, else `journalctl -k -b`.

Many clusters keep the log from their users. That is no fault of the node: `readable` is False, `said` why, and the check decides.
A ring buffer that was written over no longer reaches back to the boot; then the journal is preferred, where it can be read.

What came before the driver was loaded anew, or before the driver said of a GPU that it needs no recovery any more (Xid 154, "to 0x0
(None)"), is left out: it is healed. Equal events are one, with their number and the age of the last.
"""

from __future__ import annotations

import re
from typing import Any

from slurmtrain.preflight.machine import Machine
from slurmtrain.preflight.parts import Facts, Source
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._nvidia import SOURCE_S, limit_s, nvidia, uptime_s

RING_LOST_S = 600.0
"""A log that begins later than this after the boot has lost its beginning."""
SAME_LOAD_S = 30.0
"""What comes so shortly before the driver's line of greeting belongs to that load: a GPU that could not be probed."""
MOST = 64
_JOURNAL = ("journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-monotonic")
_RECORD = re.compile(r"^\[\s*(\d+\.\d+)\]\s*(.*)", re.DOTALL)
_XID = re.compile(r"\b(S?Xid) \(PCI:([^)]+)\): (\d+)(?:, )?(.*)", re.DOTALL)
_OFF_THE_BUS = re.compile(r"NVRM: The NVIDIA GPU ([0-9A-Fa-f:.]+).*fallen off the bus", re.DOTALL)
_LOADED = re.compile(r"NVRM: loading NVIDIA ")
_RECOVERED = re.compile(r"recovery action changed from .* to 0x0 ")
_WHOSE = re.compile(r"pid='?[^,]*'?, (?:name='?[^,]*'?, )?")
_LATE = "see `dmesg` and `journalctl -k -b` on the node: a log that takes so long is damaged or on a slow disk"
Record = tuple[float, str]


def look(machine: Machine, request: Request) -> Facts:
    limit, uptime = limit_s(request) / 2, uptime_s(machine)
    ring = machine.run("dmesg", timeout_s=limit)
    found, said = records(ring.out), _why(ring.err, "dmesg")
    if not found or found[0][0] > RING_LOST_S:
        journal = machine.run(*_JOURNAL, timeout_s=limit)
        found = records(journal.out) or found
        said = said or _why(journal.err, "journalctl")
    return {"readable": bool(found), "said": "" if found else said, "events": events(found, uptime)}


def _why(err: str, program: str) -> str:
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    return lines[-1][:160] if lines else f"{program} prints nothing"


def records(text: str) -> list[Record]:
    """(seconds since the boot, text); lines without a time go on with the one before."""
    parts = re.split(r"\n(?=\[)", text)
    return [(float(found.group(1)), found.group(2)) for part in parts if (found := _RECORD.match(part))]


def events(found: list[Record], uptime: float | None) -> list[dict[str, Any]]:
    """The last MOST kinds of event; `age_s` of the last of its kind, None where the uptime is not known."""
    kinds: dict[tuple[Any, ...], dict[str, Any]] = {}
    for t, text in found:
        if _LOADED.search(text):
            kinds = {key: one for key, one in kinds.items() if one["t"] > t - SAME_LOAD_S}
        elif one := _event(text):
            if _RECOVERED.search(one["said"]):
                kinds = {key: other for key, other in kinds.items() if other["pci"] != one["pci"]}
                continue
            key = (one["kind"], one["number"], one["pci"], one["fatal"])
            kinds[key] = {**one, "t": t, "count": kinds.get(key, {}).get("count", 0) + 1}
    last = sorted(kinds.values(), key=lambda one: float(one["t"]))[-MOST:]
    return [{**one, "age_s": None if uptime is None else max(0.0, uptime - one["t"])} for one in last]


def _event(text: str) -> dict[str, Any] | None:
    if found := _XID.search(text):
        kind, pci, number, rest = found.groups()
        said = " ".join(_WHOSE.sub("", rest).split())[:120]
        return {"kind": kind, "pci": pci, "number": int(number), "said": said, "fatal": bool(re.search(r"\bFatal\b", said))}
    if gone := _OFF_THE_BUS.search(text):
        return {"kind": "Xid", "pci": gone.group(1), "number": 79, "said": "GPU has fallen off the bus", "fatal": False}
    return None


SOURCE = Source("xid", look, late=_LATE, wanted=nvidia, timeout_s=SOURCE_S)
