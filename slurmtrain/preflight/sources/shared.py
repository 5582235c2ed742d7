"""The folders that all nodes write into: a small file goes all the way through each of them, and what is free there is asked."""

from __future__ import annotations

from slurmtrain.preflight.machine import Machine
from slurmtrain.preflight.parts import Facts, Source
from slurmtrain.preflight.request import Request
from slurmtrain.preflight.sources._writing import tried


def look(machine: Machine, request: Request) -> Facts:
    return {"folders": {name: tried(machine.path(name), machine.clock) for name in request.shared}}


SOURCE = Source("shared", look, "the file system's client on the node hangs: see dmesg and `df`, mount it anew or have the node rebooted")
