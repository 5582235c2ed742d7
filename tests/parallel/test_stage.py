"""One rank's stage without any group: the seam for other matmuls, and what a stage holds."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from slurmtrain.parallel.apply import build
from slurmtrain.parallel.decoder import Stage
from slurmtrain.parallel.parts import stage_layouts
from tests.parallel.layouts import MODEL, SEQUENCE, batch_of, plan_of, reference


class Alone:
    """A mesh of one rank."""

    def size(self, axis):
        return 1

    def index(self, axis):
        return 0

    def group(self, axis):
        return None


def test_every_linear_goes_through_the_one_matmul():
    """What replaces it (FP8) must see q, k, v as one, gate and up as one, o, down, and the head."""
    shapes = []

    def matmul(x, weight):
        shapes.append(tuple(weight.shape))
        return functional.linear(x, weight)

    plan = plan_of(MODEL, micro_batch=8)
    built = build(MODEL, plan, Alone(), sequence_length=SEQUENCE, seed=17, device=torch.device("cpu"), matmul=matmul)
    loss = built.forward_backward(*batch_of(1, MODEL))
    assert shapes == [(64, 32), (32, 32), (96, 32), (32, 48)] * 4 + [(63, 32)]
    assert loss.item() / (8 * SEQUENCE) == pytest.approx(reference(MODEL, 1)[0][0], rel=1e-6)


def test_a_stage_names_its_parameters_as_its_layouts_do():
    for layers, first, last in (((0, 1), True, False), ((2, 3), False, True), ((0, 1, 2, 3), True, True)):
        layouts = stage_layouts(MODEL, layers, first=first, last=last, index=1, size=2)
        stage = Stage(MODEL, layers, layouts, last=last)
        assert {name: tuple(p.shape) for name, p in stage.named_parameters()} == {name: x.shape for name, x in layouts.items()}
