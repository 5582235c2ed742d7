"""Stages cut over 2 and 4 tensor-parallel ranks: loss, norm and every gradient equal those of plain torch on one process."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from slurmtrain.models.names import global_shapes
from slurmtrain.parallel.parameters import norm_share
from slurmtrain.parallel.tensor import gather_sequence, scatter_sequence
from tests.mpi_world import gloo_group, run_world
from tests.parallel.cut import differences, finish, plain_case, run, stages_of
from tests.parallel.layouts import MODELS, SEQUENCE, changed, mean_loss, whole_axis
from tests.parallel.plain import Plain

LABELS = {"ignored": 0.4}
CASES = {
    **{name: (name, LABELS, {}) for name in MODELS},
    "two stages, products apart": ("qwen3", LABELS, {"cuts": 2, "overlap": False}),
    "tied over two stages": ("tied", LABELS, {"cuts": 2}),
    "documents": ("gpt2", {"documents": True}, {}),
    "documents turned": ("qwen2", {"documents": True}, {"cuts": 2}),
    "one chunk": ("llama", {}, {"loss_chunk_tokens": 1000}),
    "another product": ("qwen2", LABELS, {"matmul": lambda x, w: torch.einsum("...i,oi->...o", x, w)}),
    "z-loss": ("tied", LABELS, {"z_loss": 0.02}),
}
STEPS, RATE = 50, 0.005  # at twice the rate plain torch in fp32 leaves plain torch in fp64
SMALL = changed(MODELS["qwen3"], layers=2)


def one_case(case, tp):
    name, batch, more = CASES[case]
    loss, grads, weights, whole = plain_case(MODELS[name], z_loss=more.get("z_loss", 0.0), **batch)
    stages = stages_of(MODELS[name], weights, tp=tp, dtype=torch.float64, **{"loss_chunk_tokens": 10, **more})
    ours = run(stages, whole)
    ours.backward()
    parameters = finish(stages, tp)
    share = tp.all_reduce(norm_share(parameters, 2.0))
    norm = torch.stack([g.square().sum() for g in grads.values()]).sum()
    return ours.item() / loss - 1, (share / norm).sqrt().item() - 1, differences(parameters, grads)


def recomputed(tp):
    """The same with every block recomputed: {parameter: equal bits}."""
    found = []
    for again in (False, True):
        _, _, weights, whole = plain_case(MODELS["qwen3"])
        stages = stages_of(MODELS["qwen3"], weights, tp=tp)
        if again:
            for layer in stages[0][0].layers.values():
                layer.forward = lambda *args, inner=layer.forward: checkpoint(inner, *args, use_reentrant=False)
        run(stages, whole).backward()
        found.append([p.grad for p in stages[0][0].parameters()])
    return [torch.equal(a, b) for a, b in zip(*found, strict=True)]


def trained(tp):
    """SGD over STEPS steps: losses, {name: copied parameter} and the logits' and the head's shapes at the end."""
    _, _, weights, whole = plain_case(SMALL)
    stages = stages_of(SMALL, weights, tp=tp)
    losses = []
    for _ in range(STEPS):
        loss = run(stages, whole) / whole.valid_tokens()
        loss.backward()
        losses.append(loss.item())
        for parameter in finish(stages, tp):
            parameter.tensor.sub_(parameter.grad, alpha=RATE)
            parameter.grad.zero_()
    copies = {p.name: p.tensor for p in finish(stages, tp) if p.copies is not None}
    with torch.no_grad():
        logits = run(stages, whole, labels=False)
    return losses, copies, tuple(logits.shape), tuple(stages[0][0].head.weight.shape)


def half_precision(tp):
    loss, grads, weights, whole = plain_case(MODELS["qwen3"])
    stages = stages_of(MODELS["qwen3"], weights, tp=tp, dtype=torch.bfloat16)
    ours = run(stages, whole)
    ours.backward()
    likeness = {}
    for p in finish(stages, tp):
        for part in p.parts:
            theirs = grads[part.name][tuple(slice(a, b) for a, b in zip(part.box.offset, part.box.stop, strict=True))]
            mine = p.grad[tuple(slice(a, b) for a, b in part.region)].double()
            likeness[part.name] = torch.nn.functional.cosine_similarity(mine.flatten(), theirs.flatten(), dim=0).item()
    return ours.item() / loss - 1, likeness


def sequence_round_trip(tp):
    """(gathered, its gradient, scattered, its gradient) and whether all are contiguous."""
    part = torch.full((2, 3), float(tp.index), requires_grad=True)
    whole = gather_sequence(part.t().contiguous().t(), tp)
    (whole * torch.arange(1.0, 2 * tp.size + 1)[:, None]).sum().backward()
    partial = torch.arange(6.0 * tp.size).view(2 * tp.size, 3).requires_grad_()
    cut = scatter_sequence(partial, tp)
    (cut * (tp.index + 1)).sum().backward()
    tensors = [whole.detach(), part.grad, cut.detach(), partial.grad]
    return tensors, all(t.is_contiguous() for t in tensors)


def everything(size):
    torch.set_num_threads(1)
    gloo_group()
    tp = whole_axis()
    answers = {case: one_case(case, tp) for case, (name, _, _) in CASES.items() if size == 2 or name != "window"}
    answers |= {"sequence": sequence_round_trip(tp), "recomputed": recomputed(tp)}
    if size == 2:
        answers |= {"trained": trained(tp), "half precision": half_precision(tp)}
    dist.barrier()
    return answers


def compiled(backend):
    """Every block in one graph, both ways of multiplying: (number of graphs, loss, differences)."""
    torch.set_num_threads(1)
    gloo_group()
    tp, answers = whole_axis(), []
    for overlap in (True, False):
        torch.compiler.reset()
        torch._dynamo.utils.counters.clear()
        loss, grads, weights, whole = plain_case(SMALL, **LABELS)
        stages = stages_of(SMALL, weights, tp=tp, overlap=overlap)
        for layer in stages[0][0].layers.values():
            layer.compile(backend=backend, fullgraph=True)
        ours = run(stages, whole)
        ours.backward()
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        answers.append((graphs, ours.item() / loss - 1, differences(finish(stages, tp), grads)))
    return answers


@pytest.fixture(scope="module")
def worlds():
    return {size: run_world(everything, size, tasks_per_node=size, timeout_s=240).results for size in (2, 4)}


pytestmark = [pytest.mark.mpi, pytest.mark.slow]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_ranks_equal_plain_torch(worlds, case, size):
    """At 4 ranks of 2 kv heads, neighbours share one; 63 tokens leave the last rank a padded row."""
    answers = [rank[case] for rank in worlds[size] if case in rank]
    for loss, norm, far in answers:
        assert abs(loss) < 1e-6
        assert abs(norm) < 1e-6
        assert all(x < 1e-6 for x in far.values()), far
    if answers:
        assert set().union(*(far for *_, far in answers)) == set(global_shapes(MODELS[CASES[case][0]]))


@pytest.mark.parametrize("size", [2, 4])
def test_recomputed_blocks_give_the_same_bits(worlds, size):
    assert all(all(rank["recomputed"]) for rank in worlds[size])


def test_fifty_steps_follow_one_process(worlds):
    """A vocabulary that tp does not divide (Megatron-LM#1754), and norms of the sequence and of heads (Megatron-LM#1446)."""
    _, _, weights, whole = plain_case(SMALL)
    plain = Plain(SMALL).double()
    plain.load_state_dict(weights)
    expected = []
    for _ in range(STEPS):
        loss = mean_loss(plain, whole)
        loss.backward()
        expected.append(loss.item())
        for parameter in plain.parameters():
            parameter.data.sub_(parameter.grad, alpha=RATE)
            parameter.grad = None
    assert expected[-1] < 0.8 * expected[0]
    first, second = (rank["trained"] for rank in worlds[2])
    for losses in (first[0], second[0]):
        assert losses == pytest.approx(expected, rel=1e-5)
    assert {"layers.0.attention.q_norm.weight", "layers.1.ffn_norm.weight", "norm.weight"} <= set(first[1])
    assert all(torch.equal(value, second[1][name]) for name, value in first[1].items())


def test_each_rank_has_a_share_of_the_logits(worlds):
    """A head that is whole on each rank costs tp times the memory (picotron#23)."""
    for rank in worlds[2]:
        assert rank["trained"][2:] == ((SEQUENCE, 4, 32), (32, 32))


def test_bf16_is_near_fp64(worlds):
    for rank in worlds[2]:
        loss, likeness = rank["half precision"]
        assert abs(loss) < 2e-2
        assert all(x > 0.98 for x in likeness.values()), likeness


@pytest.mark.parametrize("size", [2, 4])
def test_gather_and_scatter_are_each_others_gradient(worlds, size):
    for index, rank in enumerate(worlds[size]):
        (whole, gathered_grad, cut, scattered_grad), contiguous = rank["sequence"]
        assert contiguous
        assert whole[:, 0].tolist() == [i for i in range(size) for _ in range(2)]
        assert gathered_grad[:, 0].tolist() == [size * (2.0 * index + 1), size * (2.0 * index + 2)]  # all ranks weigh it alike
        assert torch.equal(cut, size * torch.arange(6.0 * size).view(2 * size, 3)[2 * index : 2 * index + 2])
        assert scattered_grad[:, 0].tolist() == [i + 1 for i in range(size) for _ in range(2)]


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_compiled_blocks_equal_plain_torch(backend):
    """One graph for all layers of a stage: layers differ in values alone."""
    for rank in run_world(compiled, backend, tasks_per_node=2, timeout_s=400).results:
        for graphs, loss, far in rank:
            assert graphs == 1
            assert abs(loss) < 1e-6
            assert all(x < 5e-6 for x in far.values()), far
