"""Pipelines of four ranks, and pipelines of data-parallel ranks: FSDP2 under every schedule, tied embeddings, one norm over all stages."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist

from slurmtrain.parallel.axis import Axis, Meter
from slurmtrain.parallel.parameters import LocalParameter, norm_share, scale_gradients, sum_tied
from slurmtrain.parallel.pipeline import SINGLE, TORCH_NAMES, make_runner
from tests.mpi_world import gloo_group, run_world
from tests.parallel.stand_in import HIDDEN, LENGTH, StandIn, named, stages_here
from tests.parallel.test_pipeline import (
    CPU,
    LAYERS,
    MICRO,
    SCALE,
    assert_equal_gradients,
    batch_of_count,
    expected,
    one_schedule,
    plan_for,
    pp_axis,
    runner_of,
)

DEEP = {1: (2, 3, 1, 3), 2: (1, 1, 2, 1, 1, 1, 1, 1)}
"""Layers of the stages of four ranks, by stages a rank."""
COUNT = 8
"""Micro-batches of the whole batch; each of two data-parallel ranks has half."""
CLIP = 0.1


def four_ranks():
    torch.set_num_threads(1)
    gloo_group()
    deep = {
        name: one_schedule(name, pp_axis(), (8, 4) if name != "dualpipev" else (8, 12), DEEP[1 + (name not in SINGLE)])
        for name in TORCH_NAMES
    }
    pp = [dist.new_group([i, i + 2]) for i in range(2)][dist.get_rank() % 2]
    dp = [dist.new_group([2 * i, 2 * i + 1]) for i in range(2)][dist.get_rank() // 2]
    return {
        "deep": deep,
        "fsdp": {name: fsdp_step(name, pp, dp, torch.float32) for name in TORCH_NAMES},
        "bf16": {name: fsdp_step(name, pp, dp, torch.bfloat16) for name in TORCH_NAMES},
        "tied": {name: tied_step(name, pp, dp) for name in ("1f1b", "interleaved", "zbv")},
    }


def half_of(count: int, dp) -> object:
    """This data-parallel rank's half of a batch."""
    return batch_of_count(count).microbatches(2)[dist.get_rank(dp)]


def fsdp_step(schedule, pp, dp, dtype):
    """Of two steps after an evaluation: (losses, evaluations, whole gradients of the second, reductions of each parameter group)."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group

    plan, mesh = plan_for(schedule, 2), DeviceMesh.from_group(dp, "cpu")
    stages = stages_here(plan, dist.get_rank(pp))
    options = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32),
        "reshard_after_forward": False,
    }
    for stage in stages:
        for module in [*stage.layers.values(), stage]:
            fully_shard(module, **options)
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    runner = make_runner(
        stages, plan, pp_axis(pp), boundary=(LENGTH, MICRO, HIDDEN), dtype=dtype, device=CPU, before_backward=lambda last: None
    )
    whole, reduced = _fsdp_param_group.foreach_reduce, []
    _fsdp_param_group.foreach_reduce = lambda *args, **kwargs: reduced.append(1) or whole(*args, **kwargs)
    batch, losses, evaluations = half_of(COUNT, dp), [], []
    for _ in range(2):
        evaluations.append(runner.evaluate(batch).item())
        for parameter in named(stages).values():
            parameter.grad = None
        reduced.clear()
        losses.append(runner.train(batch, SCALE).item())
    _fsdp_param_group.foreach_reduce = whole
    evaluations.append(runner.evaluate(batch).item())
    gradients = {name: parameter.grad.full_tensor() for name, parameter in named(stages).items()}
    groups = sum(len(stage.layers) + (stage.embedding is not None or stage.norm is not None) for stage in stages)
    return losses, evaluations, gradients, len(reduced) / groups


@dataclass
class Held:
    parameter: torch.nn.Parameter

    @property
    def value(self):
        return self.parameter.detach()

    @property
    def grad(self):
        return self.parameter.grad


def tied_step(schedule, pp, dp):
    """(norm over the world, clipped gradients by name) of a tied model, dp's sum before the pipeline's ends are added up."""
    plan, index = plan_for(schedule, 2), dist.get_rank(pp)
    stages = stages_here(plan, index, tied=True)
    runner_of(plan, stages, pp_axis(pp)).train(half_of(COUNT, dp), SCALE)
    parameters = [local_parameter(name, p, owner=dist.get_rank(dp) == 0) for name, p in named(stages).items()]
    for parameter in parameters:
        dist.all_reduce(parameter.grad, group=dp)
    one_rank = plan.pp_index_of(0) == plan.pp_index_of(len(plan.stages) - 1)
    sum_tied(parameters, None if one_rank else Axis("ends", pp, 2, index, Meter(CPU, active=False)))
    square = norm_share(parameters, 2.0)
    dist.all_reduce(square)
    scale_gradients(parameters, min(1.0, CLIP / square.sqrt().item()))
    return square.sqrt().item(), {p.name: p.grad for p in parameters}


def local_parameter(name, parameter, *, owner):
    tied = name in ("embedding.weight", "head.weight")
    counted = owner and name != "head.weight"
    return LocalParameter(name, Held(parameter), (name,), counted, parameter.ndim > 1, tied=tied)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def world():
    return run_world(four_ranks, tasks_per_node=4, timeout_s=400).results


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.parametrize("schedule", TORCH_NAMES)
def test_four_stages_or_eight_equal_one_process(world, schedule):
    ranks = [rank["deep"][schedule] for rank in world]
    layers = sum(DEEP[1 + (schedule not in SINGLE)])
    assert len(ranks[0]["steps"]) == 2
    for steps in zip(*(rank["steps"] for rank in ranks), strict=True):
        count = steps[0][0]
        loss, gradients = expected([batch_of_count(count)], layers)
        assert sum(step[1] for step in steps).item() == pytest.approx(loss, rel=1e-6)
        assert_equal_gradients({name: g for step in steps for name, g in step[2].items()}, gradients)
        assert all(set(step[3].values()) == {count} for step in steps)
        assert sum(step[5] for step in steps) == pytest.approx(loss, rel=1e-6)


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.parametrize("schedule", TORCH_NAMES)
def test_fsdp_sums_gradients_once(world, schedule):
    """The second of two steps, with evaluations around: each parameter group is reduced once, to the sum over ranks and passes."""
    loss, gradients = expected([batch_of_count(COUNT)])
    ranks = [rank["fsdp"][schedule] for rank in world]
    for index in range(2):
        assert sum(rank[0][index] for rank in ranks) == pytest.approx(loss, rel=1e-6)
    for index in range(3):
        assert sum(rank[1][index] for rank in ranks) == pytest.approx(loss, rel=1e-6)
    for dp_rank in range(2):
        assert_equal_gradients(ranks[dp_rank][2] | ranks[dp_rank + 2][2], gradients)
    assert [rank[3] for rank in ranks] == [1.0] * 4


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.parametrize("schedule", TORCH_NAMES)
def test_fsdp_adds_bf16_passes_up_in_fp32(world, schedule):
    """Against one process that adds up the bf16 gradients of each micro-batch in fp32; in bf16 the sums differ by a thousandth."""
    stage, sums = StandIn(range(LAYERS), first=True, last=True).bfloat16(), {}
    for piece in batch_of_count(COUNT).microbatches(COUNT):
        (SCALE * stage(*piece.tensors())).backward()
        for name, parameter in stage.named_parameters():
            sums[name] = sums.get(name, 0.0) + parameter.grad.float()
            parameter.grad = None
    ranks = [rank["bf16"][schedule] for rank in world]
    ours = ranks[0][2] | ranks[2][2]
    layers = {name for name in sums if name.startswith("layers.")}  # the others add up within a pass, in another order
    assert_equal_gradients({name: ours[name] for name in layers}, {name: sums[name] for name in layers})


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zbv"])
def test_tied_embeddings_and_one_norm_over_stages(world, schedule):
    """Clipped gradients of pp 2 x dp 2 are those of one process; zbv has both ends on one rank."""
    stage, batch = StandIn(range(LAYERS), first=True, last=True, tied=True), batch_of_count(COUNT)
    (SCALE * stage(*batch.tensors())).backward()
    norm = torch.nn.utils.clip_grad_norm_(stage.parameters(), CLIP)
    gradients = {name: p.grad for name, p in stage.named_parameters()}
    assert norm > 10 * CLIP
    ranks = [rank["tied"][schedule] for rank in world]
    assert [rank[0] for rank in ranks] == pytest.approx([norm.item()] * 4, rel=1e-6)
    for dp_rank in range(2):
        ours = ranks[dp_rank][1] | ranks[dp_rank + 2][1]
        assert torch.equal(ours.pop("head.weight"), ours["embedding.weight"])
        assert_equal_gradients(ours, gradients)
