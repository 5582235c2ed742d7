"""Seeds: the same where ranks must draw alike, different everywhere else; generator states come back bit for bit."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch

from slurmtrain.runtime.seeds import rng_state, seed_everything, seed_for, set_rng_state

COORDINATES = [dict(zip(("pp", "dp", "cp", "ep", "tp"), c, strict=True)) for c in itertools.product(range(2), repeat=5)]


@pytest.mark.parametrize(("purpose", "distinct"), [("model", 1), ("data", 1), ("replicated", 16), ("sharded", 32)])
def test_each_purpose_differs_along_its_axes_alone(purpose, distinct):
    seeds = {seed_for(7, **at, purpose=purpose) for at in COORDINATES}
    assert len(seeds) == distinct
    assert all(0 <= s < 2**63 for s in seeds)


def test_tp_ranks_share_the_replicated_stream():
    assert seed_for(7, dp=1, tp=0, purpose="replicated") == seed_for(7, dp=1, tp=3, purpose="replicated")


def test_neighbours_do_not_meet():
    # seed + rank would give (seed 7, dp 1) and (seed 8, dp 0) the same stream.
    seeds = [seed_for(s, dp=d, pp=p, purpose="sharded") for s in range(20) for d in range(20) for p in range(20)]
    assert len(set(seeds)) == 8000
    assert len({seed_for(7, purpose=p) for p in ("model", "data", "replicated", "sharded")}) == 4


def test_a_seed_is_the_same_in_every_release():
    # blake2b("7:model", 8 bytes, big endian) >> 1, computed with b2sum -l 64.
    assert seed_for(7, purpose="model") == int("bb8d58b3d61f156f", 16) >> 1


def test_states_come_back_bit_for_bit():
    seed_everything(5)
    first = (random.random(), np.random.rand(), torch.rand(3))  # noqa: NPY002
    state = rng_state()
    assert state["cpu"].dtype == torch.uint8
    expected = torch.rand(100)
    torch.rand(17)
    set_rng_state(state)
    assert torch.equal(torch.rand(100), expected)
    seed_everything(5)
    assert (random.random(), np.random.rand()) == first[:2]  # noqa: NPY002
    assert torch.equal(torch.rand(3), first[2])
