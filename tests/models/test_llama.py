"""The single-device model equals transformers' LlamaForCausalLM with the same weights; shapes follow the table of names."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from slurmtrain.config.model import ModelConfig
from slurmtrain.models.initial import initialise
from slurmtrain.models.llama import Llama, rotary_table, rotate
from slurmtrain.models.names import global_shapes

BASE = {"layers": 2, "hidden": 48, "heads": 6, "kv_heads": 6, "ffn": 80, "vocab": 67}
VARIANTS = {
    "plain": {},
    "grouped queries": {"kv_heads": 2},
    "one kv head": {"kv_heads": 1},
    "tied": {"tied_embeddings": True},
    "theta": {"rope_theta": 500.0},
    "eps": {"norm_eps": 0.3},
    "head dim": {"head_dim": 16, "kv_heads": 3},
}
HF_NAMES = {"embedding": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
HF_LAYER = {
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    **{f"attention.{p}": f"self_attn.{p}_proj" for p in "qkvo"},
    **{f"ffn.{p}": f"mlp.{p}_proj" for p in ("gate", "up", "down")},
}


def hf_name(name: str) -> str:
    parts = name.removesuffix(".weight").split(".", 2)
    stem = f"model.layers.{parts[1]}.{HF_LAYER[parts[2]]}" if parts[0] == "layers" else HF_NAMES[parts[0]]
    return f"{stem}.weight"


def hugging_face(model: ModelConfig):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=model.vocab,
        hidden_size=model.hidden,
        intermediate_size=model.ffn,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        head_dim=model.head_dim,
        rms_norm_eps=model.norm_eps,
        rope_theta=model.rope_theta,
        rope_parameters={"rope_type": "default", "rope_theta": model.rope_theta},
        tie_word_embeddings=model.tied_embeddings,
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config)


@pytest.mark.parametrize("change", VARIANTS.values(), ids=VARIANTS.keys())
def test_equals_transformers(change):
    model = ModelConfig(**(BASE | change))
    ours, theirs = Llama(model), hugging_face(model)
    initialise(ours, model, seed=3)
    for parameter in ours.parameters():  # norms that are not one, matrices that are not tiny
        parameter.data.mul_(3.0).add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)) * 0.1)
    missing = theirs.load_state_dict({hf_name(k): v for k, v in ours.state_dict().items()}, strict=False)
    assert not missing.unexpected_keys
    assert set(missing.missing_keys) <= ({"lm_head.weight"} if model.tied_embeddings else set())
    tokens = torch.randint(0, model.vocab, (3, 21), generator=torch.Generator().manual_seed(7))
    logits, expected = ours(tokens), theirs(tokens).logits
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    theirs_loss = theirs(tokens, labels=tokens).loss
    torch.testing.assert_close(loss, theirs_loss, rtol=1e-5, atol=0)
    loss.backward()
    theirs_loss.backward()
    grads = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, grads[hf_name(name)].grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("change", VARIANTS.values(), ids=VARIANTS.keys())
def test_names_are_the_table_and_the_count(change):
    model = ModelConfig(**(BASE | change))
    shapes = {name: tuple(p.shape) for name, p in Llama(model).named_parameters()}
    assert shapes == global_shapes(model)
    if model.head_dim * model.heads == model.hidden:
        assert sum(p.numel() for p in Llama(model).parameters()) == model.parameters()


def test_rotation_is_of_pairs_by_position_times_frequency():
    """Closed form: pair i of position t turns by t * theta^(-2i/E)."""
    x = torch.zeros(1, 5, 8)
    x[..., 1] = 1.0  # first half of pair 1
    turned = rotate(x, rotary_table(5, 8, 100.0))[0]
    angle = torch.arange(5) * 100.0 ** (-2 / 8)
    torch.testing.assert_close(turned[:, 1], angle.cos())
    torch.testing.assert_close(turned[:, 5], angle.sin())
    assert turned[:, [0, 2, 3, 4, 6, 7]].abs().max() == 0
