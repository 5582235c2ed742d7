"""A trainer's session in the test's own process: a world of one rank."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from slurmtrain.clock import SystemClock
from slurmtrain.config.stored import read_plan
from slurmtrain.runtime.world import Standing, World
from slurmtrain.telemetry.sink import EventSink
from slurmtrain.train.loop import Loop
from slurmtrain.train.session import open_session
from slurmtrain.train.stopping import StopFlag
from tests.train.runs import Run


@contextmanager
def solo_world(folder):
    """A gloo group of this process alone."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 1), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def solo_loop(run: Run, attempt: int = 1, flag: StopFlag | None = None):
    """(session, loop) of attempt `attempt`."""
    run.run.attempt(attempt).create()
    world = World(
        rank=0,
        size=1,
        node="n1",
        node_index=0,
        local_rank=0,
        local_size=1,
        device=torch.device("cpu"),
        comm=None,
        plan=read_plan(run.run.plan_json),
        nodes=("n1",),
        attempt=attempt,
        timeout=timedelta(seconds=60),
    )
    clock = SystemClock()
    session = open_session(run.run, world, flag or StopFlag(), clock)
    sink = EventSink(run.run.event_file(0), clock, attempt, 0)
    return session, Loop(session, Standing(0, "n1"), sink, clock)
