"""zero1: the layout of its buckets, bits beside ddp's, and what memory each mode takes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from slurmtrain.parallel.buckets import Buckets
from slurmtrain.parallel.zero import ShardBucket
from tests.mpi_world import gloo_group, run_world
from tests.parallel.toy import Rank, toy

SHAPES = st.lists(st.tuples(st.integers(1, 7), st.integers(1, 3)), min_size=1, max_size=4)


class OfMany:
    """One rank of a shard group whose other ranks have the same gradients: sums are multiples, and every rank's rows are known."""

    def __init__(self, size, index, parameters):
        self.size, self.index, self.parameters = size, index, parameters

    def start_reduce_scatter(self, flat):
        return Done(flat.chunk(self.size)[self.index] * self.size)

    def start_all_gather(self, mine):
        """What the others would send: their rows of tensors that count from 0, each parameter padded to equal chunks."""
        sent = []
        for rank in range(self.size):
            for p in reversed(self.parameters):
                each = -(-p.shape[0] // self.size)
                rows = counting(p)[rank * each : (rank + 1) * each].flatten()
                sent.append(torch.cat([rows, torch.full((each * p[0].numel() - rows.numel(),), torch.nan)]))
        gathered = torch.cat(sent)
        here = gathered.chunk(self.size)[self.index]
        assert torch.equal(here[~here.isnan()], mine[~here.isnan()])
        return Done(gathered)


class Done:
    def __init__(self, out):
        self.out = out

    def wait(self):
        return self.out


def counting(p):
    return torch.arange(1.0, p.numel() + 1).view(p.shape)


@given(SHAPES, st.integers(2, 5), st.data())
def test_rows_go_to_their_ranks_and_come_back(shapes, size, data):
    """Any rows over any number of ranks, also fewer rows than ranks; padding (NaN here) reaches no parameter."""
    index = data.draw(st.integers(0, size - 1))
    parameters = {f"p{i}": nn.Parameter(torch.zeros(shape)) for i, shape in enumerate(shapes)}
    axis = OfMany(size, index, list(parameters.values()))
    buckets = Buckets(parameters, lambda ps: ShardBucket(ps, axis, None, torch.float32, torch.float32))
    buckets.start(2)
    for _ in range(2):
        sum((p * counting(p)).sum() for p in parameters.values()).backward()
    buckets.finish()
    for name, p in parameters.items():
        chunks = [*counting(p).split(-(-p.shape[0] // size)), *[p[:0].detach()] * size]
        assert torch.equal(buckets.holders[name].grad, 2 * size * chunks[index])
        assert buckets.holders[name].value.shape == chunks[index].shape
        buckets.holders[name].value.copy_(chunks[index])
    buckets.publish()
    assert all(torch.equal(p, counting(p)) for p in parameters.values())


def everything():
    torch.set_num_threads(1)
    gloo_group()
    answers = {}
    for mode in ("ddp", "zero1"):
        rank = Rank({"dp": 2, "dp_mode": mode})
        rank.gradients(0, 3)
        answers[mode] = rank.parts("grad")
        rank.train(2, 2, 0.05)
        answers[mode, "module"] = [p.detach().clone() for p in rank.stage.parameters()]
    answers["memory"] = {(mode, dtype): memory(mode, dtype) for mode in ("ddp", "zero1", "fsdp") for dtype in ("fp32", "bf16")}
    timed = Rank({"dp": 2, "dp_mode": "zero1"}, metered=True)
    timed.train(1, 1, 0.05)
    answers["timed"] = set(timed.axes.meter.take())
    timed = Rank({"dp": 2, "dp_mode": "fsdp"}, metered=True)
    timed.train(1, 1, 0.05)
    return answers | {"timed fsdp": set(timed.axes.meter.take())}


def memory(mode, dtype):
    """(bytes of values that are not the module's own, bytes of the module's parameters, bytes of gradient sums)."""
    rank = Rank({"dp": 2, "dp_mode": mode}, dtype=dtype)
    rank.gradients(0, 1)
    rank.reducer.publish()
    module = [getattr(p, "_local_tensor", p.detach()) for p in rank.stage.parameters()]
    own = {t.untyped_storage().data_ptr() for t in module}
    values = [p.tensor for p in rank.parameters if p.tensor.untyped_storage().data_ptr() not in own and p.tensor.numel()]
    return tuple(sum(t.numel() * t.element_size() for t in ts) for ts in (values, module, [p.grad for p in rank.parameters]))


@pytest.fixture(scope="module")
def world():
    return run_world(everything, tasks_per_node=2).results


@pytest.mark.mpi
def test_zero1_has_the_bits_of_ddp(world):
    """Two addends have one sum in either order; the rows of a rank are those of the whole, and so is all that follows."""
    whole = {name: tensor for name, _, _, _, tensor in world[0]["ddp"]}
    for rank in world:
        for name, start, stop, _, tensor in rank["zero1"]:
            assert torch.equal(tensor, whole[name][tuple(slice(a, b) for a, b in zip(start, stop, strict=True))])
        assert all(torch.equal(a, b) for a, b in zip(rank["zero1", "module"], world[0]["ddp", "module"], strict=True))


@pytest.mark.mpi
def test_memory_is_what_the_modes_say(world):
    """In numbers of all rows and of the rows of rank 0 and 1 (rows that do not divide are on rank 0)."""
    everything_ = sum(p.numel() for p in toy().parameters())
    for index, rank in enumerate(world):
        rows = sum(([*p.split(-(-len(p) // 2)), p[:0]][index]).numel() for p in toy().parameters())
        assert rank["memory"] == {
            ("ddp", "fp32"): (0, 4 * everything_, 4 * everything_),
            ("ddp", "bf16"): (4 * everything_, 2 * everything_, 4 * everything_),
            ("zero1", "fp32"): (0, 4 * everything_, 4 * rows),
            ("zero1", "bf16"): (4 * rows, 2 * everything_, 4 * rows),
            ("fsdp", "fp32"): (0, 4 * rows, 4 * rows),
            ("fsdp", "bf16"): (0, 4 * rows, 4 * rows),
        }


@pytest.mark.mpi
def test_waiting_is_counted_under_the_shard_axis(world):
    for rank in world:
        assert rank["timed"] == rank["timed fsdp"] == {"shard"}
