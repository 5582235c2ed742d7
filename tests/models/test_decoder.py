"""The single-device model equals transformers' of every family with the same weights; shapes follow the table of names."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from slurmtrain.config.model import ModelConfig
from slurmtrain.models.attention import allowed
from slurmtrain.models.decoder import Decoder
from slurmtrain.models.names import global_shapes
from slurmtrain.models.rotary import rotary_table, rotate
from tests.models.peers import BASE, GPT2, VARIANTS, as_theirs, hugging_face, noisy, shape

every_variant = pytest.mark.parametrize("change", VARIANTS.values(), ids=VARIANTS.keys())


@every_variant
def test_logits_loss_and_gradients_equal_transformers(change):
    model = shape(change)
    ours, theirs = noisy(model), hugging_face(model)
    missing = theirs.load_state_dict(as_theirs(dict(ours.named_parameters()), model), strict=False)
    assert not missing.unexpected_keys
    assert set(missing.missing_keys) <= ({"lm_head.weight"} if model.tied_embeddings else set())
    tokens = torch.randint(0, model.vocab, (3, 31), generator=torch.Generator().manual_seed(7))
    logits, expected = ours(tokens), theirs(tokens).logits
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    theirs_loss = functional.cross_entropy(expected[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    torch.testing.assert_close(loss, theirs_loss, rtol=1e-5, atol=0)
    loss.backward()
    theirs_loss.backward()
    grads = {name: p.grad for name, p in theirs.named_parameters()}
    for name, grad in as_theirs({name: p.grad for name, p in ours.named_parameters()}, model).items():
        torch.testing.assert_close(grad, grads[name], rtol=1e-4, atol=1e-5)


@every_variant
def test_names_are_the_table_and_the_count(change):
    model = shape(change)
    shapes = {name: tuple(p.shape) for name, p in Decoder(model).named_parameters()}
    assert shapes == global_shapes(model)
    assert list(shapes) == list(global_shapes(model)) or model.traits.qk_norm, "order of the forward pass"
    assert sum(p.numel() for p in Decoder(model).parameters()) == model.parameters()


@pytest.mark.parametrize("change", [{"kv_heads": 2, "window": 4}, GPT2], ids=["rotary", "learned"])
def test_packed_documents_equal_documents_alone(change):
    """Two documents in one sequence, positions starting anew and attention inside each, give the logits of each alone."""
    model = shape(change)
    ours = noisy(model)
    first, second = (torch.randint(0, 67, (1, n), generator=torch.Generator().manual_seed(n)) for n in (13, 9))
    positions = torch.cat([torch.arange(13), torch.arange(9)])[None]
    documents = torch.tensor([[0] * 13 + [1] * 9])
    packed = ours(torch.cat([first, second], dim=1), positions, documents)
    torch.testing.assert_close(packed, torch.cat([ours(first), ours(second)], dim=1), rtol=1e-5, atol=1e-5)


def test_a_window_is_what_a_token_sees():
    """Closed form: itself and the two before it."""
    expected = [[0], [0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]
    place = torch.arange(5)
    assert [row.nonzero().flatten().tolist() for row in allowed(place, place, 3)] == expected


def test_dropout_acts_in_training_alone():
    model = shape({"dropout": 0.5, "attention_dropout": 0.5})
    ours, tokens = noisy(model), torch.arange(12)[None]
    assert not torch.equal(ours(tokens), ours(tokens))
    ours.eval()
    plain = noisy(ModelConfig(**BASE))
    assert torch.equal(ours(tokens), plain(tokens))


def test_rotation_is_of_pairs_by_position_times_frequency():
    """Closed form: pair i of position t turns by t * theta^(-2i/E)."""
    x = torch.zeros(1, 5, 8)
    x[..., 1] = 1.0  # first half of pair 1
    model = shape({"hidden": 8, "heads": 1, "kv_heads": 1, "rope_theta": 100.0})
    turned = rotate(x, rotary_table(model, 5))[0]
    angle = torch.arange(5) * 100.0 ** (-2 / 8)
    torch.testing.assert_close(turned[:, 1], angle.cos())
    torch.testing.assert_close(turned[:, 5], angle.sin())
    assert turned[:, [0, 2, 3, 4, 6, 7]].abs().max() == 0
