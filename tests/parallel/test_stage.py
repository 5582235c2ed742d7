"""Stages on one process: equal to transformers, named as their layouts, whole between cuts, right when run again."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from slurmtrain.models.names import global_shapes
from slurmtrain.parallel.axis import Axis, Meter
from slurmtrain.parallel.decoder import Stage
from slurmtrain.parallel.parts import stage_layouts
from tests.models.peers import VARIANTS, as_theirs, hugging_face, noisy, shape
from tests.parallel.cut import differences, finish, plain_case, run, stages_of
from tests.parallel.layouts import MODELS, SEQUENCE, batch_of, changed

BATCHES = {"all labels": {}, "few labels": {"ignored": 0.4}, "documents": {"documents": True, "ignored": 0.2}}


@pytest.mark.parametrize("change", VARIANTS.values(), ids=VARIANTS.keys())
def test_logits_equal_transformers(change):
    model = shape(change)
    weights = {name: p.detach() for name, p in noisy(model).named_parameters()}
    theirs = hugging_face(model)
    theirs.load_state_dict(as_theirs(weights, model), strict=False)
    stages = stages_of(model, weights, cuts=2)
    batch = batch_of(1, model, 3)
    with torch.no_grad():
        ours_TBV = run(stages, batch, labels=False)
        torch.testing.assert_close(ours_TBV.transpose(0, 1), theirs(batch.tokens_NT).logits, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "gpt2", "tied"])
def test_the_plain_reference_equals_transformers(name):
    """What all layouts are measured against is itself right, in every gradient."""
    model = MODELS[name]
    _, grads, weights, batch = plain_case(model)
    theirs = hugging_face(model).double()
    theirs.load_state_dict(as_theirs(weights, model), strict=False)
    logits = theirs(batch.tokens_NT).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels_NT.flatten(), reduction="sum").backward()
    expected = {n: p.grad for n, p in theirs.named_parameters()}
    for n, grad in as_theirs(grads, model).items():
        if n in expected:  # of a tied head theirs has one name
            torch.testing.assert_close(grad, expected[n], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-6), (torch.float32, 5e-6)], ids=["fp64", "fp32"])
@pytest.mark.parametrize("cuts", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients_equal_plain_torch(name, cuts, dtype, limit):
    """In fp64 what is left is the loss's own fp32; in fp32 the rounding of four layers comes to it."""
    for batch in BATCHES.values():
        loss, grads, weights, whole = plain_case(MODELS[name], **batch)
        stages = stages_of(MODELS[name], weights, cuts=cuts, dtype=dtype, loss_chunk_tokens=10)
        ours = run(stages, whole)
        ours.backward()
        far = differences(finish(stages, None), grads)
        assert ours.item() == pytest.approx(loss, rel=1e-6)
        assert set(far) == set(global_shapes(MODELS[name]))
        assert all(x < limit for x in far.values()), far


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_of_the_layouts(name, size):
    model = MODELS[name]
    tp = None if size == 1 else Axis("tp", None, size, size - 1, Meter(torch.device("cpu")))
    for ends in ({"first": True, "last": True}, {"first": True, "last": False}, {"first": False, "last": True}):
        layouts = stage_layouts(model, [1, 2], index=size - 1, size=size, **ends)
        stage = Stage(model, [1, 2], layouts, tp=tp, **ends)
        assert {n: tuple(p.shape) for n, p in stage.named_parameters()} == {n: x.shape for n, x in layouts.items()}
        assert not dict(stage.named_buffers())


def test_between_stages_travels_contiguous_memory_both_ways():
    """Transposed views die when they are sent from rank to rank."""
    _, _, weights, batch = plain_case(MODELS["qwen3"])
    (first, _), (last, _) = stages_of(MODELS["qwen3"], weights, cuts=2)
    boundary = first(batch.tokens_NT, **batch.extras())
    assert boundary.shape == (SEQUENCE, 4, 32)
    assert boundary.is_contiguous()
    received = boundary.detach().requires_grad_()
    last(received, **batch.extras()).backward()
    assert received.grad.is_contiguous()


@pytest.mark.parametrize("overlap", [True, False])
def test_input_and_weight_gradients_may_be_made_apart(overlap):
    """As zero-bubble schedules do: first those of the input, later those of the weights, through one graph."""
    _, grads, weights, batch = plain_case(MODELS["qwen3"])
    stages = stages_of(MODELS["qwen3"], weights, cuts=2, dtype=torch.float64, overlap=overlap)
    (first, _), (last, _) = stages
    received = first(batch.tokens_NT, **batch.extras()).detach().requires_grad_()
    loss = last(received, **batch.extras())
    dx = torch.autograd.grad(loss, received, retain_graph=True)[0]
    for parameter, grad in zip(last.parameters(), torch.autograd.grad(loss, list(last.parameters())), strict=True):
        parameter.grad = grad
    first(batch.tokens_NT, **batch.extras()).backward(dx)
    assert all(x < 1e-6 for x in differences(finish(stages, None), grads).values())


def test_recomputed_blocks_give_the_same_bits():
    model = changed(MODELS["gpt2"], dropout=0.3, attention_dropout=0.2)
    _, _, weights, batch = plain_case(model)
    results = []
    for again in (False, True):
        stages = stages_of(model, weights)
        if again:
            for layer in stages[0][0].layers.values():
                layer.forward = lambda *args, inner=layer.forward: checkpoint(inner, *args, use_reentrant=False)
        torch.manual_seed(1)
        run(stages, batch).backward()
        results.append([p.grad for p in stages[0][0].parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_dropout_acts_in_training_alone():
    model = changed(MODELS["llama"], dropout=0.5)
    loss, _, weights, batch = plain_case(model)
    stages = stages_of(model, weights)
    torch.manual_seed(1)
    trained = [run(stages, batch).item() for _ in range(2)]
    assert trained[0] != trained[1]
    stages[0][0].eval()
    assert run(stages, batch).item() == pytest.approx(loss, rel=1e-6)


def test_bf16_is_near_fp32():
    loss, grads, weights, batch = plain_case(MODELS["qwen3"])
    stages = stages_of(MODELS["qwen3"], weights, dtype=torch.bfloat16)
    ours = run(stages, batch)
    ours.backward()
    assert ours.dtype == torch.float32
    assert ours.item() == pytest.approx(loss, rel=2e-2)
    for name, parameter in stages[0][0].named_parameters():
        assert parameter.grad.dtype == torch.bfloat16
        if name in grads:
            theirs, mine = grads[name].flatten(), parameter.grad.double().flatten()
            assert torch.nn.functional.cosine_similarity(mine, theirs, dim=0) > 0.99
