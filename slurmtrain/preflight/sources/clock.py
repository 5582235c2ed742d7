"""What the node's clock says."""

from __future__ import annotations

from slurmtrain.preflight.machine import Machine
from slurmtrain.preflight.parts import Facts, Source
from slurmtrain.preflight.request import Request


def look(machine: Machine, request: Request) -> Facts:  # noqa: ARG001 a source's signature
    return {"t": machine.clock.time()}


SOURCE = Source("clock", look, late="the node hangs: look at its console, have it rebooted")
