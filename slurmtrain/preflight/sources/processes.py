"""Ranks of earlier starts that still run on this node. They are told by their environment, as `resilience.sweep` tells them.

A start sweeps its nodes before it looks here, so what is left outlived SIGKILL, or could not be reached. One that is just going is given
`GOING_S`. Ranks on other nodes that are emulated on the same machine, those of this very attempt or later ones, and processes of other
users are nobody's business here; nor are those of another job of this user, unless the whole node is this job's. Several clusters that
are emulated on one machine have names of nodes in common: SLURM_CONF tells them apart.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurmtrain.preflight.answer import node_name
from slurmtrain.preflight.machine import Machine
from slurmtrain.preflight.parts import Facts, Source
from slurmtrain.preflight.request import Request

RUN, ATTEMPT, JOB, CLUSTER = "SLURMTRAIN_RUN", "SLURMTRAIN_ATTEMPT", "SLURM_JOB_ID", "SLURM_CONF"
GOING_S, LOOK_S = 5.0, 1.0
_GONE = {"Z", "X"}
"""States of processes that only wait for their parents (proc(5))."""


@dataclass(frozen=True)
class _Here:
    """Who looks: what must be the same in another process, or differ."""

    node: str
    run: str
    attempt: int
    job: str
    cluster: str
    whole: bool


def look(machine: Machine, request: Request) -> Facts:
    here = _here(machine.environ, request)
    deadline = machine.clock.monotonic() + GOING_S
    while (left := _left(machine, here)) and machine.clock.monotonic() < deadline:
        machine.clock.sleep(LOOK_S)
    return {"left": left}


def _here(environ: Mapping[str, str], request: Request) -> _Here:
    number = environ.get(ATTEMPT, "")
    whole = request.site.slurm.exclusive and request.gpus_per_node in {0, request.site.node.gpus}
    attempt = int(number) if number.isdigit() else 0
    return _Here(node_name(environ), environ.get(RUN, ""), attempt, environ.get(JOB, ""), environ.get(CLUSTER, ""), whole)


def _left(machine: Machine, here: _Here) -> list[dict[str, Any]]:
    pids = [int(name) for name in machine.names("/proc") if name.isdigit()]
    return [found for pid in sorted(pids) if (found := _leftover(machine, pid, here)) is not None]


def _leftover(machine: Machine, pid: int, here: _Here) -> dict[str, Any] | None:
    try:
        if machine.path(f"/proc/{pid}").stat().st_uid != os.getuid():
            return None
        environ = _environ(machine.path(f"/proc/{pid}/environ").read_bytes())
        state = machine.text(f"/proc/{pid}/stat").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None  # it has gone, or is not ours to look at
    if state in _GONE or not is_leftover(environ, here):
        return None
    return {"pid": pid, "state": state, "run": environ[RUN], "attempt": int(environ[ATTEMPT]), "job": environ.get(JOB, "")}


def is_leftover(environ: Mapping[str, str], here: _Here) -> bool:
    """Whether a process with this environment is a rank that should not be here any more."""
    number = environ.get(ATTEMPT, "")
    node = environ.get("SLURMTRAIN_NODE") or environ.get("SLURMD_NODENAME")
    if not environ.get(RUN) or not number.isdigit() or node != here.node:
        return False
    if environ[RUN] == here.run:
        return int(number) < here.attempt
    other_job = bool(here.job) and bool(environ.get(JOB)) and environ[JOB] != here.job
    return other_job and environ.get(CLUSTER, "") == here.cluster and here.whole


def _environ(raw: bytes) -> dict[str, str]:
    pairs = (part.partition("=") for part in raw.decode(errors="replace").split("\0"))
    return {name: value for name, sign, value in pairs if sign}


SOURCE = Source("processes", look, "a process hangs in the kernel: look at dmesg, have the node rebooted")
