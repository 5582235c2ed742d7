"""The figures of all ranks come back from one sum: means over ranks, and the largest of each."""

from __future__ import annotations

import random

import numpy as np
import pytest

from slurmtrain.train.metrics import AXES, Figures, pack, unpack
from slurmtrain.train.phases import PHASES


def total(vectors):
    return list(np.sum(vectors, axis=0))


@pytest.mark.parametrize("size", [1, 3, 8])
def test_means_and_largest_values_are_those_of_the_ranks(size):
    chance = random.Random(size)
    seconds = [{phase: chance.random() for phase in PHASES} for _ in range(size)]
    waited = [{axis: chance.random() for axis in AXES} for _ in range(size)]
    work, memory, losses = ([chance.random() for _ in range(size)] for _ in range(3))
    ranks = [Figures(4, seconds[r], waited[r], work[r], 1e9 * memory[r], losses[r], bubble=work[r] / 2) for r in range(size)]
    told = unpack(total([pack(one, rank, size) for rank, one in enumerate(ranks)]), size)
    for phase in PHASES:
        assert told[f"{phase}_s"] == pytest.approx(np.mean([s[phase] for s in seconds]), abs=1e-6)
    assert told["wait_s"] == pytest.approx({axis: np.mean([w[axis] for w in waited]) for axis in AXES}, abs=1e-6)
    assert told["slowest"] == {"rank": int(np.argmax(work)), "work_s": pytest.approx(max(work), abs=1e-6)}
    assert told["work_s"] == pytest.approx(np.mean(work), abs=1e-6)
    assert told["data_s_max"] == pytest.approx(max(s["data"] for s in seconds), abs=1e-6)
    assert told["memory_bytes"] == pytest.approx(1e9 * max(memory), abs=1)
    assert told["loss_max"] == max(losses)
    assert told["bubble"] == pytest.approx(np.mean(work) / 2, abs=1e-6)


def test_the_largest_loss_is_of_a_ranks_own_tokens():
    """Case 16: sums 2 over 1 token and 90 over 9 tokens; a rank of an earlier pipeline stage has no loss at all."""
    ranks = [Figures(1, loss=2.0 / 1), Figures(1, loss=90.0 / 9), Figures(1)]
    assert unpack(total([pack(one, rank, 3) for rank, one in enumerate(ranks)]), 3)["loss_max"] == 10.0
    nobody = unpack(total([pack(Figures(1), rank, 2) for rank in range(2)]), 2)
    assert "loss_max" not in nobody
    assert "bubble" not in nobody


def test_before_the_first_step_there_is_nothing_and_as_much_of_it():
    """Summing the same number of floats in every step keeps the reduction's rounding the same from step to step."""
    assert len(pack(None, 0, 4)) == len(pack(Figures(1, loss=1.0, bubble=0.5), 2, 4))
    assert unpack(total([pack(None, rank, 4) for rank in range(4)]), 4) == {}


def test_a_phase_that_was_not_there_is_not_told():
    told = unpack(pack(Figures(1, {"data": 0.5}, {"tp": 0.25}), 0, 1), 1)
    assert told["data_s"] == 0.5
    assert "checkpoint_s" not in told
    assert told["wait_s"] == {"tp": 0.25}
