"""Loss, norm and every gradient of every layout equal those of the single-device model on the whole batch."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from slurmtrain.parallel.apply import build
from slurmtrain.parallel.data import Replicas
from slurmtrain.parallel.parameters import squared_norm
from slurmtrain.parallel.tensor import gather_sequence, scatter_sequence, vocabulary_loss
from tests.mpi_world import gloo_group, run_world
from tests.parallel.layouts import MODEL, SEQUENCE, TorchMesh, batch_of, plan_of, reference

LAYOUTS = {
    "one": {},
    "accumulate": {"micro_batch": 2},
    "tp2": {"tp": 2, "micro_batch": 4},
    "dp2 accumulates": {"dp": 2},
    "dp4 fsdp": {"dp": 4, "mode": "fsdp"},
    "pp2": {"pp": 2, "micro_batch": 2},
    "pp4": {"pp": 4},
    "tp2 pp2": {"tp": 2, "pp": 2, "micro_batch": 2},
    "tp2 dp2": {"tp": 2, "dp": 2, "micro_batch": 4},
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
    answers = {(m, name): one_layout(MODELS[m], LAYOUTS[name]) for m, name in cases}
    return answers | {"loss": split_losses(), "buckets": bucket_sums(), "sequence": sequence_round_trip()}


def split_losses():
    """{scale: (loss, gradient of this rank's columns)} of 7 tokens over a vocabulary of 9, three columns a rank, the last rank none."""
    rank = dist.get_rank()
    start, answers = rank * 3, {}
    for scale in (1.0, 1e4):
        logits, labels = loss_case(scale)
        mine = torch.zeros(7, 3)
        real = max(0, min(3, 9 - start))
        mine[:, :real] = logits[:, start : start + real]
        mine.requires_grad_()
        loss = vocabulary_loss(mine, labels, start=start, real=real, group=dist.group.WORLD)
        (2 * loss).backward()
        answers[scale] = loss.item(), mine.grad
    return answers


def loss_case(scale):
    generator = torch.Generator().manual_seed(4)
    return torch.randn(7, 9, generator=generator) * scale, torch.tensor([0, 2, 3, 5, 6, 8, 4])


def bucket_sums():
    """Gradients after two passes with buckets smaller than most parameters, twice over."""
    parameters = [torch.nn.Parameter(torch.ones(n)) for n in (3, 1, 4, 1, 5)]
    replicas = Replicas(parameters, 2, dist.group.WORLD, limit_bytes=16)
    for scale in (7.0, 1.0):
        replicas.start()
        for number in range(2):
            weights = [scale * (dist.get_rank() + 1) * (i + 1) * (number + 1) for i in range(5)]
            sum(w * p.sum() for w, p in zip(weights, parameters, strict=True)).backward()
        replicas.finish()
    return [p.grad.tolist() for p in parameters]


def sequence_round_trip():
    """(gathered, its gradient, scattered, its gradient) and whether all are contiguous."""
    rank, group = dist.get_rank(), dist.group.WORLD
    part = torch.full((2, 3), float(rank), requires_grad=True)
    whole = gather_sequence(part.t().contiguous().t(), group)
    (whole * torch.arange(1.0, 9)[:, None]).sum().backward()
    partial = torch.arange(24.0).view(8, 3).requires_grad_()
    cut = scatter_sequence(partial, group)
    (cut * (rank + 1)).sum().backward()
    tensors = [whole.detach(), part.grad, cut.detach(), partial.grad]
    return tensors, all(t.is_contiguous() for t in tensors)


CASES = [
    *(("base", name) for name in LAYOUTS),
    *(("tied", name) for name in ("one", "tp2", "dp2 accumulates", "tp2 dp2 fsdp")),
    *(("tiny vocabulary", name) for name in ("dp4 fsdp", "tp2 pp2")),
]


@pytest.fixture(scope="module")
def world():
    return run_world(all_layouts, CASES, tasks_per_node=4, timeout_s=240).results


@pytest.fixture(scope="module")
def expected():
    return {m: reference(model, 1)[:3] for m, model in MODELS.items()}


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_loss_over_a_split_vocabulary(world, scale):
    """Also with a rank that has no column, and with logits whose exponentials overflow."""
    logits, labels = loss_case(scale)
    logits.requires_grad_()
    expected = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    (2 * expected).backward()
    assert [rank["loss"][scale][0] for rank in world] == pytest.approx([expected.item()] * 4, rel=1e-6)
    columns = torch.cat([rank["loss"][scale][1] for rank in world], dim=1)
    torch.testing.assert_close(columns[:, :9], logits.grad, rtol=1e-6, atol=1e-6)
    assert columns[:, 9:].abs().max() == 0


@pytest.mark.mpi
@pytest.mark.slow
def test_buckets_sum_over_ranks_and_passes(world):
    """Parameter i of rank r has (r + 1)(i + 1) in pass one and twice that in pass two: over four ranks 30 (i + 1)."""
    lengths = (3, 1, 4, 1, 5)
    for rank in world:
        assert rank["buckets"] == [[30.0 * (i + 1)] * n for i, n in enumerate(lengths)]


@pytest.mark.mpi
@pytest.mark.slow
def test_gather_and_scatter_are_each_others_gradient(world):
    for index, rank in enumerate(world):
        (whole, gathered_grad, cut, scattered_grad), contiguous = rank["sequence"]
        assert contiguous
        assert whole[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        assert gathered_grad[:, 0].tolist() == [4.0 * (2 * index + 1), 4.0 * (2 * index + 2)]  # all four ranks weigh it alike
        assert torch.equal(cut, 4 * torch.arange(24.0).view(8, 3)[2 * index : 2 * index + 2])
        assert scattered_grad[:, 0].tolist() == [1, 1, 2, 2, 3, 3, 4, 4]


@pytest.mark.mpi
@pytest.mark.slow
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
