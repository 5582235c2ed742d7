"""Ranks of an earlier start that are still there: they hold GPUs, memory and ports, and may write into the run."""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request

_STUCK = "it waits for a disk or a driver and outlives SIGKILL: look at dmesg, have the node rebooted"


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:  # noqa: ARG001 as others of its kind
    for one in facts["left"]:
        of = f"attempt {one['attempt']} of {one['run']}" + (f" (job {one['job']})" if one["job"] else "")
        remedy = _STUCK if one["state"] == "D" else f"end it (`kill -9 {one['pid']}`), and see why nobody did"
        yield Trouble("fail", f"a process of {of} is still there", remedy, f"process {one['pid']}")


CHECK = Check("leftover-ranks", "processes", "no rank of an earlier start is left on the node", judge)
