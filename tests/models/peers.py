"""Small shapes of every family, and transformers' own models of them, written down without our conversion of config.json."""

from __future__ import annotations

from typing import Any

import torch

from slurmtrain.config.model import ModelConfig
from slurmtrain.models.decoder import Decoder
from slurmtrain.models.initial import initialise

BASE: dict[str, Any] = {"layers": 2, "hidden": 48, "heads": 6, "kv_heads": 6, "ffn": 80, "vocab": 67}
GPT2 = {"family": "gpt2", "max_positions": 40, "tied_embeddings": True}
LLAMA3 = {"kind": "llama3", "factor": 4.0, "original_length": 16, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"kind": "yarn", "factor": 4.0, "original_length": 16, "beta_fast": 8.0, "beta_slow": 0.5}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped queries": {"kv_heads": 2},
    "one kv head": {"kv_heads": 1},
    "tied": {"tied_embeddings": True},
    "theta": {"rope_theta": 500.0},
    "eps": {"norm_eps": 0.3},
    "head dim": {"head_dim": 16, "kv_heads": 3},
    "llama3": {"rope_theta": 100.0, "rope_scaling": LLAMA3},
    "linear": {"rope_scaling": {"kind": "linear", "factor": 3.0}},
    "yarn": {"rope_theta": 100.0, "rope_scaling": YARN},
    "yarn with a factor of its own": {"rope_theta": 100.0, "rope_scaling": YARN | {"attention_factor": 0.7}},
    "window": {"window": 5},
    "qwen2": {"family": "qwen2", "kv_heads": 2, "norm_eps": 1e-6},
    "qwen2 tied window": {"family": "qwen2", "kv_heads": 3, "tied_embeddings": True, "window": 4},
    "qwen2 yarn": {"family": "qwen2", "rope_theta": 100.0, "rope_scaling": YARN},
    "qwen3": {"family": "qwen3", "kv_heads": 2, "head_dim": 16},
    "qwen3 tied": {"family": "qwen3", "kv_heads": 3, "head_dim": 10, "tied_embeddings": True},
    "gpt2": GPT2,
    "gpt2 untied": GPT2 | {"tied_embeddings": False, "norm_eps": 0.1},
    "gpt2 other inner size": GPT2 | {"ffn": 56},
}


def shape(change: dict[str, Any]) -> ModelConfig:
    return ModelConfig(**(BASE | change))


def noisy(model: ModelConfig, seed: int = 3) -> Decoder:
    """A decoder whose norms are not one, biases not zero and matrices not tiny."""
    ours = Decoder(model)
    initialise(ours, model, seed)
    generator = torch.Generator().manual_seed(5)
    for parameter in ours.parameters():
        parameter.data.mul_(3.0).add_(torch.randn(parameter.shape, generator=generator) * 0.08)
    return ours


def hugging_face(model: ModelConfig) -> torch.nn.Module:
    """Transformers' model of a shape, in eval mode, with eager attention."""
    import transformers as hf

    if model.family == "gpt2":
        config = hf.GPT2Config(
            vocab_size=model.vocab,
            n_positions=model.max_positions,
            n_embd=model.hidden,
            n_layer=model.layers,
            n_head=model.heads,
            n_inner=model.ffn,
            layer_norm_epsilon=model.norm_eps,
            tie_word_embeddings=model.tied_embeddings,
            bos_token_id=None,
            eos_token_id=None,
            attn_implementation="eager",
        )
        return hf.GPT2LMHeadModel(config).eval()
    kinds = {"llama": hf.MistralForCausalLM if model.window else hf.LlamaForCausalLM, "qwen2": hf.Qwen2ForCausalLM}
    kind = kinds.get(model.family, hf.Qwen3ForCausalLM)
    config = kind.config_class(
        vocab_size=model.vocab,
        hidden_size=model.hidden,
        intermediate_size=model.ffn,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        head_dim=model.head_dim,
        rms_norm_eps=model.norm_eps,
        rope_parameters=_rope(model),
        max_position_embeddings=64,
        use_sliding_window=model.window is not None,
        sliding_window=model.window,
        max_window_layers=0,
        tie_word_embeddings=model.tied_embeddings,
        attn_implementation="eager",
    )
    return kind(config).eval()


def _rope(model: ModelConfig) -> dict[str, Any]:
    scaling = model.rope_scaling
    if scaling is None:
        return {"rope_type": "default", "rope_theta": model.rope_theta}
    values = {"rope_type": scaling.kind, "rope_theta": model.rope_theta, "factor": scaling.factor}
    if scaling.kind == "linear":
        return values
    values["original_max_position_embeddings"] = scaling.original_length
    if scaling.kind == "llama3":
        return values | {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
    own = {} if scaling.attention_factor is None else {"attention_factor": scaling.attention_factor}
    return values | {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow} | own


LLAMA_LAYER = {
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    **{f"attention.{p}": f"self_attn.{p}_proj" for p in "qkvo"},
    **{f"attention.{p}_norm": f"self_attn.{p}_norm" for p in "qk"},
    **{f"ffn.{p}": f"mlp.{p}_proj" for p in ("gate", "up", "down")},
}
GPT2_LAYER = {"attention_norm": "ln_1", "ffn_norm": "ln_2", "attention.o": "attn.c_proj", "ffn.up": "mlp.c_fc", "ffn.down": "mlp.c_proj"}


def as_theirs(named: dict[str, torch.Tensor], model: ModelConfig) -> dict[str, torch.Tensor]:
    """Our tensors under transformers' names, in their orientation."""
    gpt2, found = model.family == "gpt2", {}
    outer = (
        {"embedding": "transformer.wte", "positions": "transformer.wpe", "norm": "transformer.ln_f"}
        if gpt2
        else {
            "embedding": "model.embed_tokens",
            "norm": "model.norm",
        }
    )
    for name, tensor in named.items():
        parts = name.split(".")
        if parts[0] != "layers":
            found[f"{outer.get(parts[0], 'lm_head')}.{parts[1]}"] = tensor
        elif not gpt2:
            found[f"model.layers.{parts[1]}.{LLAMA_LAYER['.'.join(parts[2:-1])]}.{parts[-1]}"] = tensor
        elif (stem := ".".join(parts[2:-1])) in GPT2_LAYER:
            found[f"transformer.h.{parts[1]}.{GPT2_LAYER[stem]}.{parts[-1]}"] = tensor.T if tensor.ndim == 2 else tensor
        elif stem == "attention.q":
            qkv = torch.cat([named[name.replace("attention.q", f"attention.{p}")] for p in "qkv"])
            found[f"transformer.h.{parts[1]}.attn.c_attn.{parts[-1]}"] = qkv.T if qkv.ndim == 2 else qkv
    return found
