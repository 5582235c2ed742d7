"""Room for the ranks' processes and threads; where there is none, torch dies of "can't start new thread" in the middle of its start."""

from __future__ import annotations

from collections.abc import Iterator

from slurmtrain.preflight.finding import Trouble
from slurmtrain.preflight.parts import Check, Facts
from slurmtrain.preflight.request import Request

EACH = 200
"""Threads of a rank with its loaders: 8 GPU ranks stay below 1,600."""


def judge(facts: Facts, request: Request) -> Iterator[Trouble]:
    need, room = EACH * (request.gpus_per_node or request.site.node.gpus), facts["tasks_room"]
    if room is not None and room < need:
        remedy = "raise pids.max of the job's control group (TasksMax of slurmd), or kernel.threads-max; see what runs with `ps -eLf`"
        yield Trouble("fail", f"room for {max(room, 0)} more processes and threads, {need} wanted", remedy)


CHECK = Check("host-tasks", "host", "the system has room for the ranks' processes and threads", judge)
