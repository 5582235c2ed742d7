"""The trainer's group over gloo keeps the contract of groups; one that a rank has left breaks soon for the others."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch.distributed as dist

from slurmtrain.train.group import TorchGroup
from tests.checkpoint.group_conformance import PeerConformance
from tests.mpi_world import gloo_group, run_world

pytestmark = pytest.mark.mpi
SIZE = 3


class Conformance(PeerConformance):
    size = SIZE

    def __init__(self, group):
        self._group = group

    def run(self, body):
        try:
            mine = body(self._group)
        except Exception as error:  # noqa: BLE001 part of the contract of run
            mine = error
        everybody = [None] * SIZE
        dist.all_gather_object(everybody, mine)
        return everybody


def conform():
    """Names of the tests that were run; then how long a rank waits for one that has left."""
    gloo_group()
    group = TorchGroup(30)
    tests = Conformance(group)
    done = []
    for name in sorted(dir(tests)):
        if name.startswith("test_"):
            test = getattr(tests, name)
            for mark in getattr(test, "pytestmark", []):
                for values in mark.args[1]:
                    test(**dict(zip(mark.args[0].split(", "), values, strict=True)))
            if not getattr(test, "pytestmark", []):
                test()
            done.append(name)
    dist.barrier()
    start = time.monotonic()
    if group.rank == 1:
        group.close()
        waited = 0.0
    else:
        with pytest.raises(RuntimeError):
            group.receive(np.empty(8, np.uint8), 1)()
        waited = time.monotonic() - start
    dist.barrier()
    fresh = TorchGroup(60)
    assert fresh.broadcast(group.rank) == 0, "and another one may be made"
    return done, waited


def test_the_contract_of_groups():
    world = run_world(conform, nodes=1, tasks_per_node=SIZE)
    for done, waited in world.results:
        assert len(done) == len([name for name in dir(PeerConformance) if name.startswith("test_")])
        assert waited < 20
