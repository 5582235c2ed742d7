"""torch's own flight recorder, over gloo: a collective that one rank never entered is found in what the ranks answer."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist

from slurmtrain.resilience.flight import first_missing, read_flight
from slurmtrain.runtime.flight import BUFFER, answer_flights
from slurmtrain.telemetry.stackdump import ask_for_flight, flight_dump
from tests.mpi_world import gloo_group, run_world


def answered(folder):
    """Three collectives, of which rank 1 enters the last one only after all have answered; the path of this rank's record."""
    gloo_group()
    pair = dist.new_group([0, 1])
    assert answer_flights(folder)
    ones = torch.ones(3)
    for _ in range(2):
        dist.all_reduce(ones, group=pair)
    late = dist.all_reduce(ones, group=pair, async_op=True) if dist.get_rank() == 0 else None
    assert ask_for_flight(folder, os.getpid())
    limit = time.monotonic() + 30
    while not flight_dump(folder, os.getpid()).exists():
        assert time.monotonic() < limit
        time.sleep(0.01)
    if late is None:
        dist.all_reduce(ones, group=pair)
    else:
        late.wait()
    return str(flight_dump(folder, os.getpid())), ones.tolist()


def test_a_collective_that_one_rank_never_entered(tmp_path):
    told = run_world(answered, tmp_path, env={BUFFER: "100"}).results
    assert [ones for _, ones in told] == [[8.0] * 3] * 2
    records = {rank: read_flight(path) for rank, (path, _) in enumerate((type(tmp_path)(p), o) for p, o in told)}
    missing = first_missing(records)
    assert (missing.seq, missing.operation, missing.entered, missing.absent) == (3, "all_reduce", (0,), (1,))


def test_where_torch_records_nothing_nobody_is_asked(tmp_path, monkeypatch):
    monkeypatch.delenv(BUFFER, raising=False)
    assert not answer_flights(tmp_path)
    monkeypatch.setenv(BUFFER, "0")
    assert not answer_flights(tmp_path)
    assert not ask_for_flight(tmp_path, os.getpid())
