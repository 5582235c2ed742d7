"""Loss, norm and every gradient of every layout equal those of the single-device model on the whole batch."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from slurmtrain.parallel.apply import build
from slurmtrain.parallel.parameters import squared_norm
from tests.mpi_world import gloo_group, run_world
from tests.parallel.layouts import MODEL, SEQUENCE, TorchMesh, batch_of, plan_of, reference

LAYOUTS = {
    "one": {},
    "accumulate": {"micro_batch": 2},
    "tp2": {"tp": 2},
    "tp2 micro": {"tp": 2, "micro_batch": 4},
    "dp2": {"dp": 2},
    "dp4 odd": {"dp": 4, "micro_batch": 2},
    "dp2 fsdp": {"dp": 2, "mode": "fsdp"},
    "dp4 fsdp": {"dp": 4, "mode": "fsdp"},
    "pp2": {"pp": 2},
    "pp2 micro": {"pp": 2, "micro_batch": 2},
    "pp4": {"pp": 4},
    "tp2 pp2": {"tp": 2, "pp": 2},
    "tp2 dp2": {"tp": 2, "dp": 2},
    "tp2 dp2 fsdp": {"tp": 2, "dp": 2, "mode": "fsdp", "micro_batch": 2},
    "pp2 dp2": {"pp": 2, "dp": 2},
    "pp2 dp2 fsdp": {"pp": 2, "dp": 2, "mode": "fsdp"},
}
MODELS = {
    "base": MODEL,  # 63 tokens: tp 2 pads the vocabulary
    "tied": MODEL.model_copy(update={"tied_embeddings": True}),
    "tiny vocabulary": MODEL.model_copy(update={"vocab": 3}),  # fsdp over 4 leaves a rank without rows
}


def one_layout(model, layout):
    """(mean loss, norm, {name: largest difference of a gradient}) of one step; None on ranks outside."""
    shape = {k: v for k, v in layout.items() if k in ("tp", "dp", "pp")}
    mesh = TorchMesh(**shape)
    if not mesh.inside:
        return None
    plan = plan_of(model, **layout)
    built = build(model, plan, mesh, sequence_length=SEQUENCE, seed=17, device=torch.device("cpu"))
    tokens, labels = (x.chunk(plan.dp)[mesh.index("dp")] for x in batch_of(1, model))
    built.forward_backward(batch_of(9, model)[0].chunk(plan.dp)[mesh.index("dp")], labels)  # leaves gradients behind
    loss = built.forward_backward(tokens, labels)
    numbers = torch.stack([squared_norm(built.parameters), loss * built.counts_loss])
    dist.all_reduce(numbers, group=mesh.world)
    _, _, expected, _ = reference(model, 1)
    differences = {}
    for parameter in built.parameters:
        for part in parameter.parts:
            ours = parameter.grad[tuple(slice(a, b) for a, b in part.region)]
            theirs = expected[part.name][tuple(slice(a, b) for a, b in zip(part.box.offset, part.box.stop, strict=True))]
            assert ours.shape == theirs.shape
            differences[part.name] = (ours - theirs).abs().max().item() / expected[part.name].abs().max().item()
    return numbers[1].item() / (8 * SEQUENCE), numbers[0].sqrt().item(), differences


def all_layouts(cases):
    torch.set_num_threads(1)
    gloo_group()
    return {(m, name): one_layout(MODELS[m], LAYOUTS[name]) for m, name in cases}


CASES = [
    *(("base", name) for name in LAYOUTS),
    *(("tied", name) for name in ("one", "tp2", "dp2", "tp2 dp2 fsdp")),
    *(("tiny vocabulary", name) for name in ("dp4 fsdp", "tp2 pp2")),
]


@pytest.fixture(scope="module")
def world():
    return run_world(all_layouts, CASES, tasks_per_node=4, timeout_s=240).results


@pytest.fixture(scope="module")
def expected():
    return {m: reference(model, 1)[:3] for m, model in MODELS.items()}


@pytest.mark.mpi
@pytest.mark.parametrize(("model", "layout"), CASES, ids=[f"{m}-{name}" for m, name in CASES])
def test_layout_equals_one_process(world, expected, model, layout):
    losses, norms, gradients = expected[model]
    seen = set()
    for rank in world:
        answer = rank[model, layout]
        if answer is None:
            continue
        loss, norm, differences = answer
        assert loss == pytest.approx(losses[0], rel=1e-6)
        assert norm == pytest.approx(norms[0], rel=1e-6)
        assert max(differences.values(), default=0.0) < 2e-6, differences
        seen |= set(differences)
    assert seen == set(gradients)
