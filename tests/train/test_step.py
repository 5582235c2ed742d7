"""The step against a plain loop of torch (mean over tokens, clip_grad_norm_, AdamW), on one rank and on two; and what stops it."""

from __future__ import annotations

import math
import re
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist

from slurmtrain.boxes import Box, Part
from slurmtrain.config.training import LossScale, OptimizerConfig
from slurmtrain.errors import DataError
from slurmtrain.parallel.batch import IGNORED, StepBatch
from slurmtrain.parallel.parameters import LocalParameter, norm_share
from slurmtrain.train.ema import Average
from slurmtrain.train.optimizer import make_optimizer
from slurmtrain.train.scaler import LossScaler
from slurmtrain.train.schedule import lr_at
from slurmtrain.train.step import Step
from slurmtrain.train.stopping import StopFlag
from tests.mpi_world import gloo_group, run_world
from tests.train.small_built import Held, SmallBuilt, batch_of, first_values, loss_sum_of

CONFIG = OptimizerConfig(lr=0.05, warmup_steps=3, weight_decay=0.2, betas=(0.8, 0.9))
STEPS, CLIP = 6, 0.25


def step_on(built, *, world=None, scaler=None, power=2.0, flag=None, average=None, **more):
    optimizer = make_optimizer(built.parameters, CONFIG)
    return Step(
        built,
        optimizer,
        lr_at=lambda update: lr_at(update, CONFIG, STEPS),
        clip_norm=CLIP,
        flag=flag or StopFlag(),
        world=world,
        data_size=built.size,
        norm_power=power,
        scaler=scaler,
        average=average,
        **more,
    )


def share(batch, rank, size):
    return batch.map(lambda x: x.chunk(size)[rank])


def plain(power=2.0, skipped=()):
    """[(loss, norm, lr)] and the weights of a plain loop of torch that leaves out the skipped steps' updates."""
    weights = {name: value.requires_grad_() for name, value in first_values().items()}
    groups = [{"params": [w], "weight_decay": CONFIG.weight_decay if w.ndim > 1 else 0.0} for w in weights.values()]
    optimizer = torch.optim.AdamW(groups, betas=CONFIG.betas, eps=CONFIG.eps)
    told, updates = [], 0
    for number in range(1, STEPS + 1):
        batch = batch_of(number)
        loss = loss_sum_of(weights, batch.tokens_NT, batch.labels_NT) / (batch.labels_NT != IGNORED).sum()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(list(weights.values()), CLIP, norm_type=power)
        lr = lr_at(updates + 1, CONFIG, STEPS)
        told.append((loss.item(), norm.item(), lr))
        if number not in skipped:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            updates += 1
    return told, {name: w.detach() for name, w in weights.items()}


def assert_close(weights, expected):
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-5, atol=1e-6, msg=name)


def trained(built, steps=STEPS, **more):
    step = step_on(built, **more)
    return [step(number, share(batch_of(number), built.rank, built.size)) for number in range(1, steps + 1)]


@pytest.mark.parametrize("power", [2.0, 1.0, math.inf])
def test_one_rank_is_a_plain_loop_of_torch(power):
    built = SmallBuilt()
    results = trained(built, power=power)
    told, weights = plain(power)
    assert [(r.loss, r.grad_norm, r.lr) for r in results] == [pytest.approx(one, rel=1e-6) for one in told]
    assert [r.tokens for r in results] == [batch_of(n).valid_tokens().item() for n in range(1, STEPS + 1)]
    assert results[0].own_loss == pytest.approx(results[0].loss, rel=1e-12)
    assert_close(built.weights, weights)


def test_the_norm_of_a_large_matrix_is_right_to_the_last_digits_of_fp32():
    grad = torch.rand(2048, 2048, generator=torch.Generator().manual_seed(1))
    part = Part("w", (2048, 2048), Box((0, 0), (2048, 2048)), ((0, 2048), (0, 2048)))
    parameter = LocalParameter("w", Held(grad, grad), (part,), owned=True, decays=True)
    expected = grad.double().square().sum().item()
    assert norm_share([parameter], 2.0).item() == pytest.approx(expected, rel=1e-7)


def test_a_loss_scale_changes_no_bit():
    scaled, bare = SmallBuilt(), SmallBuilt()
    trained(scaled, scaler=LossScaler(LossScale(initial=2.0**12, growth_steps=2)))
    trained(bare)
    assert all(torch.equal(scaled.weights[name], bare.weights[name]) for name in bare.weights)


def test_an_overflow_skips_the_update_and_the_schedule():
    built = SmallBuilt(poison={(2, 0): math.inf, (4, 0): math.nan})
    average = Average(built.parameters, 0.0)
    results = trained(built, scaler=LossScaler(LossScale(initial=64.0)), average=average)
    told, weights = plain(skipped=(2, 4))
    assert [r.skipped for r in results] == [False, True, False, True, False, False]
    assert [r.scale for r in results] == [64, 64, 32, 32, 16, 16]
    assert [r.lr for r in results] == [lr for *_, lr in told]
    assert [r.loss for r in results] == pytest.approx([loss for loss, *_ in told], rel=1e-6)
    assert_close(built.weights, weights)
    assert torch.equal(average.values[-1], built.parameters[-1].tensor)


@pytest.mark.parametrize("scale", [None, LossScale(initial=1.0)])
def test_what_is_not_finite_is_a_fault_and_nothing_is_updated(scale):
    built = SmallBuilt(poison={(1, 0): math.inf})
    (result,) = trained(built, steps=1, scaler=LossScaler(scale) if scale else None)
    assert (result.skipped, result.fault.cause) == (True, "nonfinite")
    assert re.search(r"step 1: .*1 ranks see" + (".*at its minimum, 1$" if scale else ".*finite\\)$"), result.fault.text)
    assert all(torch.equal(built.weights[name], value) for name, value in first_values().items())


def test_phases_and_flags():
    seen, flag = [], StopFlag()
    flag.given.add("requeue")
    flag.disowned = True

    @contextmanager
    def phase(name):
        seen.append(name)
        yield

    result = step_on(SmallBuilt(), flag=flag, phase=phase)(1, batch_of(1), [2.5, -1.0])
    assert seen == ["forward_backward", "reduction", "optimizer", "publish"]
    assert (result.heard.stop, result.heard.disowned, result.passengers) == ("requeue", True, [2.5, -1.0])


def bare_labels(batch, keep=None):
    """The batch without a label, but for sequence `keep`."""
    labels = torch.full_like(batch.labels_NT, IGNORED)
    if keep is not None:
        labels[keep] = batch.labels_NT[keep]
    return StepBatch(batch.tokens_NT, labels)


def outcome(deed):
    try:
        return deed()
    except DataError as error:
        return f"{type(error).__name__}: {error}"


def on_two_ranks():
    group = gloo_group()
    rank, size, world = group.rank, group.size, dist.group.WORLD
    told = {}
    for power in (2.0, 1.0, math.inf):
        built = SmallBuilt(rank, size)
        told[f"norm {power}"] = trained(built, world=world, power=power), built.weights
    for broken in range(size):
        built, scaler = SmallBuilt(rank, size, poison={(2, broken): math.inf}), LossScaler(LossScale(initial=64.0))
        results = trained(built, world=world, scaler=scaler)
        told[f"overflow on {broken}"] = results, built.weights, scaler.scale
    built = SmallBuilt(rank, size, poison={(1, 1): math.nan})
    told["not finite"] = trained(built, steps=1, world=world)[0].fault, built.weights
    flag = StopFlag()
    if rank == 1:
        flag.given.add("stop")
    step = step_on(SmallBuilt(rank, size), world=world, flag=flag)
    told["one rank's labels"] = step(1, share(bare_labels(batch_of(1), keep=3), rank, size), [rank + 1.0, math.pi])
    told["no labels"] = outcome(lambda: step(2, share(bare_labels(batch_of(1)), rank, size)))
    return told


@pytest.fixture(scope="module")
def two_ranks():
    return run_world(on_two_ranks).results


@pytest.mark.mpi
@pytest.mark.parametrize("power", [2.0, 1.0, math.inf])
def test_two_ranks_with_unequal_labels_are_one(two_ranks, power):
    told, weights = plain(power)
    for results, values in (rank[f"norm {power}"] for rank in two_ranks):
        assert [(r.loss, r.grad_norm) for r in results] == [pytest.approx(one[:2], rel=1e-6) for one in told]
        assert_close(values, weights)
    (first, _), (second, _) = (rank[f"norm {power}"] for rank in two_ranks)
    for one, other in zip(first, second, strict=True):
        assert (one.loss, one.grad_norm, one.tokens) == (other.loss, other.grad_norm, other.tokens)
        assert one.own_loss != other.own_loss


@pytest.mark.mpi
@pytest.mark.parametrize("broken", [0, 1])
def test_an_overflow_on_one_rank_skips_on_both(two_ranks, broken):
    _, weights = plain(skipped=(2,))
    for results, values, scale in (rank[f"overflow on {broken}"] for rank in two_ranks):
        assert [r.skipped for r in results] == [False, True, False, False, False, False]
        assert scale == 32.0
        assert_close(values, weights)


@pytest.mark.mpi
def test_errors_flags_and_passengers_are_the_same_everywhere(two_ranks):
    for rank in two_ranks:
        fault, values = rank["not finite"]
        assert fault.text.startswith("step 1: loss ")
        assert all(torch.equal(values[name], value) for name, value in first_values().items())
        result = rank["one rank's labels"]
        assert (result.heard.stop, result.passengers) == ("stop", [3.0, 2 * math.pi])
        assert result.tokens == (batch_of(1).labels_NT[3] != IGNORED).sum()
        assert rank["no labels"].startswith("DataError: step 2: no token of the global batch has a label")
    assert two_ranks[0]["one rank's labels"].own_loss is None
    assert two_ranks[1]["one rank's labels"].own_loss == pytest.approx(two_ranks[0]["one rank's labels"].loss)
