"""Attempts of a run, one after another by one world of ranks, on nodes of the test's choice; an error ends an attempt, not the world."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from slurmtrain.clock import SystemClock
from slurmtrain.config.stored import read_plan
from slurmtrain.errors import SlurmtrainError
from slurmtrain.rundir import RunDir
from slurmtrain.runtime.world import Standing
from slurmtrain.telemetry.sink import EventSink
from slurmtrain.train.loop import Loop
from slurmtrain.train.session import open_session
from slurmtrain.train.stopping import StopFlag
from tests.mpi_world import gloo_group
from tests.parallel.layouts import world_of


@dataclass(frozen=True)
class Try:
    """Attempt `number` of the run in a folder; `nodes`: of its ranks in their order, one each."""

    folder: Path
    number: int
    nodes: tuple[str, ...] = field(default=("n1", "n2", "n3", "n4"))


def tried(tries: list[Try]) -> list[str]:
    """How each ended on this rank: "finished", or its error."""
    torch.set_num_threads(1)
    gloo_group()
    told = []
    for one in tries:
        told.append(_one(one))
        dist.barrier()
    return told


def _one(one: Try) -> str:
    run, rank, clock = RunDir(one.folder), dist.get_rank(), SystemClock()
    run.attempt(one.number).create()
    torch.manual_seed(1000 * one.number + rank)
    plan = read_plan(run.plan_json)
    place = {"nodes": one.nodes[: plan.world], "node": one.nodes[rank], "node_index": rank, "local_rank": 0, "local_size": 1}
    world = replace(world_of(plan), attempt=one.number, timeout=timedelta(seconds=60), **place)
    session = open_session(run, world, StopFlag(), clock)
    sink = EventSink(run.event_file(rank), clock, one.number, rank)
    try:
        return Loop(session, Standing(rank, one.nodes[rank]), sink, clock).run().kind
    except SlurmtrainError as error:
        return f"{type(error).__name__}: {error}"
