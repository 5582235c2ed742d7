"""Optimisers against torch's own classes on the same tensors, also when state moves to a new one; who decays; fused parameters."""

from __future__ import annotations

import pytest
import torch

from slurmtrain.config.training import OptimizerConfig
from slurmtrain.parallel.parameters import LocalParameter
from slurmtrain.train.optimizer import make_optimizer
from tests.train.fused import LAYER_MATRICES, SHAPES, Held, each_part, local, values_of


def reference(config, decayed):
    """torch's own classes over the global tensors, each of the reference's optimisers with the names that it has."""
    theirs = {name: torch.nn.Parameter(value) for name, value in values_of(1).items()}

    def groups(names):
        return [{"params": [theirs[name]], "weight_decay": config.weight_decay if name in decayed else 0.0} for name in names]

    adamw = {"lr": config.lr, "betas": config.betas, "eps": config.eps}
    rest = [name for name in SHAPES if name not in LAYER_MATRICES]
    made = {
        "adamw": lambda: [torch.optim.AdamW(groups(SHAPES), **adamw)],
        "sgd": lambda: [torch.optim.SGD(groups(SHAPES), lr=config.lr, momentum=config.momentum)],
        "adafactor": lambda: [torch.optim.Adafactor(groups(SHAPES), lr=config.lr)],
        "muon": lambda: [
            torch.optim.Muon(groups(LAYER_MATRICES), lr=config.lr, momentum=config.momentum or 0.95, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(groups(rest), **adamw),
        ],
    }
    return theirs, made[config.name]()


def moved(config, old, parameters):
    """A new optimiser that was given the old one's state, as a checkpoint does."""
    fresh = make_optimizer(parameters, config)
    for kind, tensors in fresh.states().items():
        for into, source in zip(tensors, old.states()[kind], strict=True):
            assert (into is None) == (source is None)
            if into is not None:
                into.copy_(source)
    fresh.updates = old.updates
    return fresh


MATRICES = tuple(name for name, shape in SHAPES.items() if len(shape) == 2)


@pytest.mark.parametrize("break_at", [None, 4])
@pytest.mark.parametrize(
    ("more", "decayed"),
    [
        ({}, MATRICES),
        ({"no_decay": ("embedding.*", "layers.*.attention.k.*")}, tuple(n for n in MATRICES if "embedding" not in n and ".k." not in n)),
        ({"name": "sgd"}, MATRICES),
        ({"name": "sgd", "momentum": 0.9, "no_decay": ("*.q.weight",)}, tuple(n for n in MATRICES if ".q." not in n)),
        ({"name": "adafactor"}, MATRICES),
        ({"name": "muon"}, MATRICES),
        ({"name": "muon", "momentum": 0.8, "no_decay": ("*.k.weight",)}, tuple(n for n in MATRICES if ".k." not in n)),
    ],
    ids=["adamw", "adamw no_decay", "sgd", "sgd momentum", "adafactor", "muon", "muon no_decay"],
)
def test_equals_torchs_class_on_the_global_tensors(more, decayed, break_at):
    config = OptimizerConfig(lr=0.1, weight_decay=0.3, betas=(0.8, 0.9), eps=1e-6, **more)
    parameters = local(values_of(1))
    theirs, references = reference(config, decayed)
    optimizer = make_optimizer(parameters, config)
    for step in range(8):
        if step == break_at:
            optimizer = moved(config, optimizer, parameters)
        gradients = values_of(100 + step)
        for name, parameter, region in each_part(parameters):
            parameter.grad[region] = gradients[name]
            theirs[name].grad = gradients[name].clone()
        for one in references:
            for group in one.param_groups:
                group["lr"] = 0.1 / (step + 1)
            one.step()
        optimizer.step(0.1 / (step + 1))
    assert optimizer.updates == 8
    for name, parameter, region in each_part(parameters):
        torch.testing.assert_close(parameter.tensor[region], theirs[name].detach(), rtol=1e-5, atol=1e-6)


def test_a_shard_without_rows_is_updated_as_well_as_its_neighbours():
    empty = LocalParameter("a", Held(torch.zeros(0, 4), torch.zeros(0, 4)), (), owned=True, decays=True)
    for name in ("adamw", "sgd"):
        full = LocalParameter("b", Held(torch.ones(2, 4), torch.ones(2, 4)), (), owned=True, decays=False)
        make_optimizer([empty, full], OptimizerConfig(name=name)).step(0.5)
        assert torch.allclose(full.tensor, torch.full((2, 4), 0.5)), name  # AdamW's first update is the sign, too


@pytest.mark.parametrize(("name", "kinds"), [("adamw", 2), ("sgd", 0), ("adafactor", 3), ("muon", 3)])
def test_state_is_there_from_the_start_and_adafactors_is_small(name, kinds):
    parameters = local(values_of(1))
    states = make_optimizer(parameters, OptimizerConfig(name=name)).states()
    assert len(states) == kinds
    assert all(len(tensors) == len(parameters) for tensors in states.values())
    if name == "adafactor":
        numbers = sum(t.numel() for tensors in states.values() for t in tensors if t is not None)
        assert numbers == sum(sum(shape) if len(shape) == 2 else shape[0] for shape in SHAPES.values())
