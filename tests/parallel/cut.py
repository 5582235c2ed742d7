"""Stages on a tensor-parallel axis, without reducer and pipeline, and how far their gradients are from a plain model's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slurmtrain.config.model import ModelConfig
from slurmtrain.parallel.axis import Axis
from slurmtrain.parallel.batch import StepBatch
from slurmtrain.parallel.decoder import Stage
from slurmtrain.parallel.parameters import LocalParameter, sum_partial, sum_tied
from slurmtrain.parallel.parts import Layout, stage_layouts
from tests.parallel.layouts import SEQUENCE, batch_of, box_of, copy_in, mean_loss
from tests.parallel.plain import Plain

Named = dict[str, Tensor]


@dataclass
class Alone:
    """A parameter of which this rank holds all that it has: the Holder of a module without reducer."""

    parameter: torch.nn.Parameter

    @property
    def value(self) -> Tensor:
        return self.parameter.data

    @property
    def grad(self) -> Tensor:
        assert self.parameter.grad is not None
        return self.parameter.grad


def plain_case(
    model: ModelConfig, *, sequences: int = 4, z_loss: float = 0.0, seed: int = 3, **batch: object
) -> tuple[float, Named, Named, StepBatch]:
    """(loss sum, gradients of it, weights, batch) of plain torch in fp64; matrices so large that every part of the model matters."""
    plain, generator = Plain(model).double(), torch.Generator().manual_seed(seed)
    for name, parameter in plain.named_parameters():
        norm = name.endswith("norm.weight")
        torch.nn.init.normal_(parameter, mean=float(norm), std=0.15, generator=generator)
    whole = batch_of(1, model, sequences, **batch)  # type: ignore[arg-type]
    loss = mean_loss(plain, whole, z_loss) * whole.valid_tokens()
    loss.backward()
    grads = {n: p.grad for n, p in plain.named_parameters()}
    return loss.item(), grads, {n: p.detach() for n, p in plain.named_parameters()}, whole


def stages_of(
    model: ModelConfig, weights: Named, *, cuts: int = 1, tp: Axis | None = None, dtype: torch.dtype = torch.float32, **more: object
) -> list[tuple[Stage, dict[str, Layout]]]:
    """`cuts` pipeline stages, all on this rank, with the weights' values."""
    index, size = (0, 1) if tp is None else (tp.index, tp.size)
    each, found = model.layers // cuts, []
    for number in range(cuts):
        layers, ends = range(number * each, (number + 1) * each), {"first": number == 0, "last": number == cuts - 1}
        layouts = stage_layouts(model, layers, index=index, size=size, **ends)
        stage = Stage(model, layers, layouts, tp=tp, **ends, **more).to(dtype)  # type: ignore[arg-type]
        for name, parameter in stage.named_parameters():
            copy_in(parameter, layouts[name], weights)
        stage.prepare(torch.arange(SEQUENCE))
        found.append((stage, layouts))
    return found


def run(stages: list[tuple[Stage, dict[str, Layout]]], batch: StepBatch, *, labels: bool = True) -> Tensor:
    """Loss sum of the whole batch, or this rank's logits."""
    x = batch.tokens_NT
    for stage, _ in stages:
        extras = batch.extras() if labels else {k: v for k, v in batch.extras().items() if k != "labels_BT"}
        x = stage(x, **extras)
    return x


def parameters_of(stages: list[tuple[Stage, dict[str, Layout]]]) -> list[LocalParameter]:
    """As `apply` makes them."""
    found = []
    for stage, layouts in stages:
        for name, parameter in stage.named_parameters():
            layout = layouts[name]
            found.append(LocalParameter(name, Alone(parameter), layout.parts, layout.owned, parameter.ndim > 1, layout.copies, layout.tied))
    return found


def finish(stages: list[tuple[Stage, dict[str, Layout]]], tp: Axis | None) -> list[LocalParameter]:
    """The parameters, their gradients added up over copies and ties."""
    parameters = parameters_of(stages)
    sum_partial(parameters, tp)
    sum_tied(parameters, None)
    return parameters


def differences(parameters: list[LocalParameter], expected: Named) -> dict[str, float]:
    """By global tensor: the largest difference of a gradient here to the expected one, relative to its largest element.

    Tensors whose gradient is nothing but rounding (the bias of keys, which softmax cannot see) count relative to all the others.
    """
    floor = 1e-2 * max(g.abs().max().item() for g in expected.values())
    found: dict[str, float] = {}
    for parameter in parameters:
        for part in parameter.parts:
            ours = parameter.grad[tuple(slice(a, b) for a, b in part.region)].double()
            theirs = expected[part.name]
            far = (ours - box_of(theirs, part)).abs().max().item() / max(theirs.abs().max().item(), floor)
            found[part.name] = max(found.get(part.name, 0.0), far)
    return found
