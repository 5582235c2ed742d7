"""Evaluation weighs by tokens over batches and ranks, is the same on every rank, and lets go when a stop is asked for."""

from __future__ import annotations

import math

import pytest
import torch

from slurmtrain.clock import SystemClock
from slurmtrain.errors import DataError
from slurmtrain.parallel.batch import IGNORED, StepBatch
from slurmtrain.train.evaluate import Evaluator, Interrupted
from slurmtrain.train.stopping import StopFlag
from tests.mpi_world import gloo_group, run_world


class Told:
    """Answers with the loss sum that a batch names in its first token; counts the batches."""

    def __init__(self, *, counts_loss=True, deed=lambda count: None):
        self.counts_loss, self._deed, self.count = counts_loss, deed, 0

    def evaluate(self, batch):
        self.count += 1
        self._deed(self.count)
        return batch.tokens_NT[0, 0].double() if self.counts_loss else torch.tensor(math.nan, dtype=torch.float64)

    def valid_tokens(self, batch):
        return batch.valid_tokens()


def batch(loss_sum, tokens):
    labels = torch.full((1, 10), IGNORED)
    labels[0, :tokens] = 1
    return StepBatch(torch.full((1, 10), loss_sum), labels)


def evaluator(built, flag=None, world=None, **sets):
    sources = {name: (lambda pairs=pairs: (batch(*pair) for pair in pairs)) for name, pairs in sets.items()}
    device = torch.device("cpu")
    return Evaluator(built, sources, flag=flag or StopFlag(), world=world, device=device, clock=SystemClock())


def test_two_batches_of_one_and_nine_tokens():
    """Case 2: (2 over 1 token), (90 over 9): 9.2, not the mean of means, 6."""
    (one,) = evaluator(Told(), held_out=[(2, 1), (90, 9)])()
    assert (one.name, one.loss, one.tokens) == ("held_out", 9.2, 10)


def test_each_set_by_itself_and_anew_each_time():
    twice = evaluator(Told(), b=[(30, 3)], a=[(2, 1), (0, 0)])
    assert [(one.name, one.loss, one.tokens) for one in twice()] == [("a", 2.0, 1), ("b", 10.0, 3)]
    assert [(one.name, one.loss, one.tokens) for one in twice()] == [("a", 2.0, 1), ("b", 10.0, 3)]


def test_a_set_without_a_token_is_told_by_name():
    with pytest.raises(DataError, match=r"evaluation set 'empty': no token in it has a loss"):
        evaluator(Told(), empty=[(0, 0)])()


@pytest.mark.parametrize("asked", ["requeue", "disowned"])
def test_a_stop_ends_it_within_a_batch(asked):
    flag = StopFlag()

    def ask(count):
        if count == 2 and asked == "requeue":
            flag.given.add("requeue")
        flag.disowned = count == 2 and asked == "disowned"

    built = Told(deed=ask)
    result = evaluator(built, flag, a=[(1, 1)] * 9, b=[(1, 1)])()
    assert result == Interrupted("requeue" if asked == "requeue" else None, asked == "disowned")
    assert built.count == 2


def on_two_ranks():
    """A plain evaluation, with all loss on rank 0 in its second batch; one in which rank 1 alone is asked to stop."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank = gloo_group().rank
    pairs = [[(2, 1), (90, 9)], [(6, 2), (0, 0)]][rank]
    plain = evaluator(Told(), world=dist.group.WORLD, s=pairs)()
    half = evaluator(Told(counts_loss=rank == 0), world=dist.group.WORLD, s=pairs)()
    flag = StopFlag()
    built = Told(deed=lambda count: flag.given.update({"stop"} if (rank, count) == (1, 3) else set()))
    stopped = evaluator(built, flag, dist.group.WORLD, s=[(1, 1)] * 9)()
    dist.destroy_process_group()
    return [(one.loss, one.tokens) for one in plain], [(one.loss, one.tokens) for one in half], stopped, built.count


@pytest.mark.mpi
def test_all_ranks_hear_the_same():
    """Cases 2 and 90: ranks with unlike shares, a rank whose share has no token left, one whose loss another rank counts."""
    world = run_world(on_two_ranks, tasks_per_node=2)
    for plain, half, stopped, count in world.results:
        assert plain == [((2 + 90 + 6) / 12, 12)]
        assert half == [(9.2, 10)]
        assert stopped == Interrupted("stop", disowned=False)
        assert count == 3
