"""A whole run of each rank of a world with a heart that remembers what it was told; what its reader saw meanwhile."""

from __future__ import annotations

import time
from pathlib import Path

import torch
import torch.distributed as dist

from slurmtrain.clock import SystemClock
from slurmtrain.rundir import RunDir
from slurmtrain.runtime.world import Standing
from slurmtrain.telemetry.heartbeat import SharedHeart, read_beat
from slurmtrain.telemetry.sink import EventSink
from slurmtrain.train.loop import Loop
from slurmtrain.train.session import open_session
from slurmtrain.train.stopping import StopFlag
from tests.mpi_world import gloo_group
from tests.train.several import _numbered


class Remembering(SharedHeart):
    """`told`: each phase with the step after which it began, as whoever reads the memory sees it; `spent_s`: in beating; `beats`."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.told: list[tuple[str, int]] = []
        self.works: list[float] = []
        self.beats, self.spent_s = 0, 0.0
        super().__init__(folder, rank, 1, SystemClock())

    def beat(self, phase=None, *, step=None, work_s=None):
        began = time.perf_counter()
        super().beat(phase, step=step, work_s=work_s)
        self.spent_s += time.perf_counter() - began
        self.beats += 1
        seen = read_beat(self.path)
        if not self.told or self.told[-1] != (seen.phase, seen.step):
            self.told.append((seen.phase, seen.step))
        if work_s is not None:
            self.works.append(seen.work_s)


def beating(folder: Path, memory: Path):
    """(phases told, work told, collectives entered, microseconds a beat, beats) of a run on this rank."""
    torch.set_num_threads(1)
    gloo_group()
    run, rank = RunDir(folder), dist.get_rank()
    if rank == 0:
        run.attempt(1).create()
    dist.barrier()
    heart = Remembering(memory, rank)
    clock, world = SystemClock(), _numbered(run, 1)
    session = open_session(run, world, StopFlag(), clock, heart=heart)
    sink = EventSink(run.event_file(0), clock, 1, rank) if rank == 0 else None
    Loop(session, Standing(rank, "n1", heart=heart), sink, clock).run()
    return heart.told, heart.works, read_beat(heart.path).entered, 1e6 * heart.spent_s / heart.beats, heart.beats
