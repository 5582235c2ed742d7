"""Norms and sums over ranks that hold parts, copies and shards, beside one process that has the global gradients."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist

from slurmtrain.parallel.axis import Axis, Meter
from slurmtrain.parallel.buckets import Held
from slurmtrain.parallel.parameters import LocalParameter, norm_share, scale_gradients, sum_partial, sum_tied
from slurmtrain.parallel.parts import Copies, Layout, column, row, shard_rows, vocabulary
from tests.mpi_world import gloo_group, run_world
from tests.parallel.toy import box, region

SHAPES = {"embedding.weight": (7, 6), "q": (8, 6), "k": (4, 6), "o": (6, 8), "norm": (6,), "kv": (4, 6)}
POWERS = (2.0, 1.0, 3.0, math.inf)


def global_gradients():
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def layouts(index, size, slots):
    """A cut vocabulary with padding, fused columns, a row matrix, a norm on all, kv heads on `slots` sets of neighbours."""
    slot, each = index * slots // size, SHAPES["kv"][0] // slots
    copies = Copies(1, 0, index == 0) if size > 1 else None
    kv = column([("kv", SHAPES["kv"])], slot, slots)
    norm = column([("norm", SHAPES["norm"])], 0, 1)
    assert kv.shape[0] == each
    return {
        "embedding": vocabulary("embedding.weight", SHAPES["embedding.weight"], index, size),
        "qk": column([("q", SHAPES["q"]), ("k", SHAPES["k"])], index, size),
        "o": row("o", SHAPES["o"], index, size),
        "norm": Layout(norm.shape, norm.parts, copies),
        "kv": Layout(kv.shape, kv.parts, Copies(slots, slot, index % (size // slots) == 0) if slots < size else None),
    }


def parameter_of(name, layout, share=1.0):
    """Its gradient is a share of the global one; padding stays zero."""
    grad, expected = torch.zeros(layout.shape), global_gradients()
    for part in layout.parts:
        grad[region(part)] = share * expected[part.name][box(part)]
    return LocalParameter(name, Held(torch.zeros(layout.shape), grad), layout.parts, layout.owned, True, layout.copies, layout.tied)


def partial(tp_size, slots, shard_size):
    """Norms of the world, and the largest difference of a gradient, after the partial sums; each copy has an uneven share."""
    rank = dist.get_rank()
    tp_index, shard_index = rank % tp_size, rank // tp_size
    groups = [dist.new_group(list(range(start, start + tp_size))) for start in range(0, 4, tp_size)]
    tp = Axis("tp", groups[rank // tp_size], tp_size, tp_index, Meter(torch.device("cpu"), active=False)) if tp_size > 1 else None
    parameters = []
    for name, layout in layouts(tp_index, tp_size, slots).items():
        share = 1.0
        if layout.copies is not None:
            together = tp_size // layout.copies.slots
            share = (tp_index % together + 1) / (together * (together + 1) / 2)
        parameters.append(parameter_of(name, shard_rows(layout, shard_index, shard_size), share))
    sum_partial(parameters, tp)
    norms = {}
    for power in POWERS:
        total = norm_share(parameters, power)
        dist.all_reduce(total, op=dist.ReduceOp.MAX if math.isinf(power) else dist.ReduceOp.SUM)
        norms[power] = total.item() if math.isinf(power) else total.item() ** (1 / power)
    expected = global_gradients()
    errors = [(p.grad[region(part)] - expected[part.name][box(part)]).abs().amax().item() for p in parameters for part in p.parts]
    return norms, max(errors, default=0.0)


def tied():
    """Rank r of four has r + 1 in a tied gradient; ranks 0 and 3 are the ends, rank 1 alone with two tied stages of its own."""
    rank = dist.get_rank()
    group = dist.new_group([0, 3])
    ends = Axis("ends", group, 2, rank // 3, Meter(torch.device("cpu"), active=False)) if rank in (0, 3) else None
    layout = column([("embedding.weight", (7, 6))], 0, 1)
    grads = [torch.full((7, 6), float(rank + 1)) for _ in range(2 if rank == 1 else 1)] + [torch.ones(2)]
    made = [LocalParameter(str(i), Held(g, g), layout.parts, True, True, None, g.ndim == 2 and rank != 2) for i, g in enumerate(grads)]
    sum_tied(made, ends)
    return [g.unique().tolist() for g in grads]


def everything():
    torch.set_num_threads(1)
    gloo_group()
    return {case: partial(*case) for case in CASES} | {"tied": tied()}


CASES = [(4, 2, 1), (2, 2, 2), (2, 1, 2), (1, 1, 4), (4, 1, 1)]


@pytest.fixture(scope="module")
def world():
    return run_world(everything, tasks_per_node=4).results


@pytest.mark.mpi
@pytest.mark.parametrize("case", CASES, ids=["tp {} kv {} shard {}".format(*case) for case in CASES])
def test_partial_gradients_and_norms_equal_one_process(world, case):
    """Mixed: cut, cut and sharded, copied on all, copied on some, with ranks that have no rows."""
    flat = torch.cat([g.flatten().double() for g in global_gradients().values()])
    for rank in world:
        norms, error = rank[case]
        assert error < 1e-6
        for power in POWERS:
            assert norms[power] == pytest.approx(torch.linalg.vector_norm(flat, power).item(), rel=1e-6)


@pytest.mark.mpi
def test_tied_gradients_are_summed_over_the_ends_and_over_own_stages(world):
    assert [rank["tied"] for rank in world] == [[[5.0], [1.0]], [[4.0], [4.0], [1.0]], [[3.0], [1.0]], [[5.0], [1.0]]]


def test_one_factor_scales_every_gradient_in_place():
    parameters = [parameter_of(name, layout) for name, layout in layouts(0, 1, 1).items()]
    before = [p.grad.clone() for p in parameters]
    scale_gradients(parameters, 0.25)
    assert all(torch.equal(p.grad, g / 4) for p, g in zip(parameters, before, strict=True))


def test_a_rank_that_owns_nothing_has_no_share():
    layout = column([("q", (8, 6))], 0, 1)
    grad = torch.ones(layout.shape)
    copy = LocalParameter("q", Held(grad, grad), layout.parts, owned=False, decays=True)
    padding = LocalParameter("p", Held(grad, grad), (), owned=True, decays=True)
    for power in POWERS:
        share = norm_share([copy, padding], power)
        assert share.item() == 0
        assert share.dtype == torch.float64
