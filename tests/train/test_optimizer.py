"""The schedule against closed forms, the optimiser against torch's own class."""

from __future__ import annotations

import pytest
import torch

from slurmtrain.config.training import OptimizerConfig
from slurmtrain.parallel.parameters import LocalParameter
from slurmtrain.train.optimizer import AdamW, lr_at

SCHEDULE = OptimizerConfig(lr=1.0, min_lr=0.1, warmup_steps=4)


@pytest.mark.parametrize(
    ("step", "lr"),
    [
        (1, 0.25),
        (4, 1.0),  # the peak
        (6, 0.1 + 0.9 * 0.853553390593),  # a quarter of the cosine: (1 + cos(pi/4)) / 2
        (8, 0.55),  # half
        (12, 0.1),
        (40, 0.1),  # training longer than the decay
    ],
)
def test_warm_up_then_cosine(step, lr):
    assert lr_at(step, SCHEDULE, steps=12) == pytest.approx(lr, rel=1e-12)


def test_decay_may_end_before_training():
    early = SCHEDULE.model_copy(update={"total_steps": 8})
    assert [lr_at(step, early, steps=100) for step in (6, 8, 50)] == pytest.approx([0.55, 0.1, 0.1])


def test_no_warm_up_starts_below_the_peak_and_only_warm_up_ends_at_it():
    assert lr_at(1, SCHEDULE.model_copy(update={"warmup_steps": 0}), steps=2) == pytest.approx(0.55)
    only = SCHEDULE.model_copy(update={"warmup_steps": 12})
    assert lr_at(12, only, steps=12) == 1.0


def parameters(seed: int) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((6, 4), (4,), (3, 5), (5,))]


def local(sources) -> list[LocalParameter]:
    return [LocalParameter(str(i), p, (), owned=True, partial=False) for i, p in enumerate(sources)]


def give_gradients(sources, step):
    generator = torch.Generator().manual_seed(100 + step)
    for source in sources:
        source.grad = torch.randn(source.shape, generator=generator)


@pytest.mark.parametrize("break_at", [None, 4])
def test_equals_torch_also_when_state_moves_to_a_new_one(break_at):
    config = OptimizerConfig(lr=0.1, weight_decay=0.3, betas=(0.8, 0.9), eps=1e-6)
    ours, theirs = parameters(1), parameters(1)
    groups = [
        {"params": [p for p in theirs if p.ndim > 1], "weight_decay": 0.3},
        {"params": [p for p in theirs if p.ndim == 1], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, lr=0.1, betas=(0.8, 0.9), eps=1e-6)
    optimizer = AdamW(local(ours), config)
    for step in range(10):
        if step == break_at:
            fresh = AdamW(local(ours), config)
            for (m, v), (old_m, old_v) in zip(fresh.moments, optimizer.moments, strict=True):
                m.copy_(old_m)
                v.copy_(old_v)
            fresh.updates, optimizer = optimizer.updates, fresh
        give_gradients(ours, step)
        give_gradients(theirs, step)
        lr = 0.1 / (step + 1)
        for group in reference.param_groups:
            group["lr"] = lr
        optimizer.step(lr)
        reference.step()
    assert optimizer.updates == 10
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)
