"""Every mode of data parallelism gives the sums of one process that sees all batches, and keeps values as it says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from slurmtrain.parallel.axes import Axes
from slurmtrain.parallel.axis import Axis, Meter
from slurmtrain.parallel.buckets import Buckets
from slurmtrain.parallel.data import make_reducer
from slurmtrain.parallel.parameters import norm_share
from slurmtrain.parallel.replicas import WholeBucket
from tests.mpi_world import gloo_group, run_world
from tests.parallel.layouts import CPU, plan_of
from tests.parallel.toy import (
    MODEL,
    Rank,
    check_parts,
    expected_gradients,
    expected_values,
    layouts_of,
    tokens_of,
    toy,
    training,
    world_sum,
)

LAYOUTS = {
    "one": {},
    "ddp": {"dp": 4},
    "ddp cp": {"dp": 2, "cp": 2},
    "zero1": {"dp": 4, "dp_mode": "zero1"},
    "zero1 in two": {"dp": 4, "dp_mode": "zero1", "dp_shard": 2},
    "zero1 cp": {"dp": 2, "cp": 2, "dp_mode": "zero1", "dp_shard": 1},
    "zero2": {"dp": 4, "dp_mode": "zero2"},
    "fsdp": {"dp": 4, "dp_mode": "fsdp"},
    "fsdp cp": {"dp": 2, "cp": 2, "dp_mode": "fsdp"},
    "hsdp": {"dp": 4, "dp_mode": "fsdp", "dp_shard": 2},
    "hsdp, cp slowest": {"dp": 2, "cp": 2, "dp_mode": "fsdp", "dp_shard": 1, "order": ("tp", "dp", "ep", "cp", "pp")},
    "zero2 in two": {"dp": 4, "dp_mode": "zero2", "dp_shard": 2},
    "three do not divide": {"dp": 3, "dp_mode": "zero1"},
    "fsdp of three": {"dp": 3, "dp_mode": "fsdp"},
    "shards of one": {"dp": 2, "dp_mode": "fsdp", "dp_shard": 1},
}
LR = 0.05


def one_layout(layout):
    rank = Rank(layout, meta=layout.get("dp_mode") is not None)
    if not rank.inside:
        world_sum(0)
        return None
    found = {}
    for passes in (4, 1, 3, 2):  # a batch ramp changes them, and each step leaves gradients behind for the next
        rank.gradients(0, passes)
        found[passes] = rank.parts("grad")
    found["norm"] = world_sum(norm_share(rank.parameters, 2.0)) ** 0.5
    found["places"] = [p.tensor.data_ptr() for p in rank.parameters]
    rank.train(3, 2, LR)
    found["values"] = rank.parts("tensor")
    found["stayed"] = found.pop("places") == [p.tensor.data_ptr() for p in rank.parameters]
    with torch.no_grad():
        found["output"] = rank.stage(tokens_of(9, 0, 0)).item()
        rank.load(dict(toy().named_parameters()))  # after a forward without a backward
        found["first output"] = rank.stage(tokens_of(9, 0, 0)).item()
    return found


def repeated():
    """Bits of two steps in one go, and of the second step by a reducer made anew from the values after the first."""
    answers = []
    for mode in ("ddp", "zero1", "fsdp"):
        whole = Rank({"dp": 4, "dp_mode": mode})
        whole.train(1, 2, LR)
        saved = gathered(whole)
        whole.gradients(1, 3)
        anew = Rank({"dp": 4, "dp_mode": mode})
        anew.load(saved)
        anew.gradients(1, 3)
        answers.append(all(torch.equal(a[-1], b[-1]) for a, b in zip(whole.parts("grad"), anew.parts("grad"), strict=True)))
    return answers


def gathered(rank):
    """Whole tensors from everybody's parts."""
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, rank.parts("tensor"))
    values = {name: torch.zeros(p.shape) for name, p in toy().named_parameters()}
    for name, start, stop, _, tensor in (part for parts in everybody for part in parts):
        values[name][tuple(slice(a, b) for a, b in zip(start, stop, strict=True))] = tensor
    return values


def unhooked(layout):
    """Gradients that a schedule makes by itself, as zero bubble does with those of weights: no hook is called."""
    rank = Rank(layout)
    if not rank.inside:
        return None
    rank.reducer.start(2)
    for number in range(2):
        weights = list(rank.stage.parameters())
        for weight, grad in zip(weights, torch.autograd.grad(rank.stage(tokens_of(0, rank.place, number)), weights), strict=True):
            if weight.grad is None:
                weight.grad = grad
            else:
                weight.grad += grad
    rank.reducer.finish()
    return rank.parts("grad")


def everything():
    torch.set_num_threads(1)
    gloo_group()
    answers = {name: one_layout(layout) for name, layout in LAYOUTS.items()}
    answers["repeated"] = repeated()
    answers["unhooked"] = [unhooked({"dp": 4}), unhooked({"dp": 4, "dp_mode": "zero1"})]
    return answers


@pytest.fixture(scope="module")
def world():
    return run_world(everything, tasks_per_node=4, timeout_s=240).results


def ranks_of(world, name):
    layout = LAYOUTS[name]
    answers = [rank[name] for rank in world if rank[name] is not None]
    assert len(answers) == layout.get("dp", 1) * layout.get("cp", 1)
    return answers


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_gradients_are_sums_over_passes_and_ranks(world, name):
    answers = ranks_of(world, name)
    for passes in (1, 2, 3, 4):
        check_parts([a[passes] for a in answers], expected_gradients(len(answers), passes), 1e-6)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_norm_counts_each_element_once(world, name):
    answers = ranks_of(world, name)
    expected = torch.cat([g.flatten() for g in expected_gradients(len(answers), 2).values()]).norm().item()
    assert [a["norm"] for a in answers] == pytest.approx([expected] * len(answers), rel=1e-6)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_training_equals_one_process(world, name):
    """Values after three steps, and what the module computes with them, which is the same on every rank."""
    answers = ranks_of(world, name)
    masters, stage = expected_values(len(answers), 2, 3, LR)
    check_parts([a["values"] for a in answers], masters, 1e-6)
    assert {a["output"] for a in answers} == {answers[0]["output"]}
    assert answers[0]["output"] == pytest.approx(stage(tokens_of(9, 0, 0)).item(), rel=1e-6)
    assert [a["first output"] for a in answers] == pytest.approx([toy()(tokens_of(9, 0, 0)).item()] * len(answers), rel=1e-6)
    assert all(a["stayed"] for a in answers), "an optimiser that keeps the tensors would change others"


@pytest.mark.mpi
@pytest.mark.slow
def test_a_reducer_made_anew_repeats_the_bits(world):
    assert [rank["repeated"] for rank in world] == [[True, True, True]] * 4


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1], ids=["ddp", "zero1"])
def test_gradients_that_no_hook_told_of_are_summed_too(world, which):
    check_parts([rank["unhooked"][which] for rank in world], expected_gradients(4, 2), 1e-6)


class Watched:
    """An axis that notes what was sent while the backward pass ran."""

    def __init__(self, log):
        self.log = log

    def start_all_reduce(self, flat):
        self.log.append(("sent", flat.numel()))
        return Watched.Done(flat)

    class Done:
        def __init__(self, out):
            self.wait = lambda: out


def test_buckets_go_in_one_order_as_soon_as_they_are_full():
    """Parameters of 1 to 4 numbers, two a bucket at most; b reaches its gradient last although its bucket is the first."""
    log = []
    parameters = {name: nn.Parameter(torch.ones(n)) for n, name in enumerate("dcba", 1)}
    buckets = Buckets(parameters, lambda ps: WholeBucket(ps, Watched(log), torch.float32, torch.float32), limit_bytes=28)
    buckets.start(2)
    for round_ in range(2):
        for name in "cadb":
            parameters[name].sum().backward()
            log.append((name, round_))
    buckets.finish()
    sends = [entry for entry in log if entry[0] == "sent"]
    assert sends == [("sent", 7), ("sent", 3)]  # a and b, then c and d
    assert log.index(("sent", 7)) == log.index(("b", 1)) - 2
    assert [h.grad.tolist() for h in buckets.holders.values()] == [[2.0] * n for n in (1, 2, 3, 4)]
    buckets.start(1)
    assert all(h.grad.abs().max() == 0 for h in buckets.holders.values())


def test_more_passes_than_said_are_a_mistake():
    parameter = nn.Parameter(torch.ones(2))
    buckets = Buckets({"a": parameter}, lambda ps: WholeBucket(ps, None, torch.float32, torch.float32))
    buckets.start(1)
    parameter.sum().backward()
    with pytest.raises(AssertionError, match="more backward passes"):
        parameter.sum().backward()


def test_a_rank_counts_what_no_rank_before_it_has():
    """Two stages on a rank; a tied head that its layout does not count stays uncounted, a second replica counts nothing."""
    stages = [toy(), nn.ModuleDict({"tail": nn.Linear(3, 2), "layers": nn.ModuleDict()})]
    layouts = layouts_of(stages[0]) | layouts_of(stages[1])
    layouts["head.weight"] = replace(layouts["head.weight"], tied=True, counted=False)
    for index in (0, 1):
        ranks = Axis("dp_cp", None, 2, index, Meter(CPU, active=False))
        axes = Axes(None, None, None, ranks, None, ranks, None, index, ranks.meter)
        reducer, held = make_reducer(stages, layouts, plan_of(MODEL, dp=2), axes, training(), CPU)
        assert list(reducer.holders) == list(held) == list(layouts)
        assert {name for name, layout in held.items() if layout.owned} == (set(layouts) - {"head.weight"} if index == 0 else set())
        assert held["head.weight"].tied
