"""The config.json that an export writes: transformers reads the model that was trained."""

from __future__ import annotations

from typing import Any

from slurmtrain.config.model import ModelConfig, RopeScaling
from slurmtrain.errors import ConfigError

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
}


def hf_config(model: ModelConfig, *, length: int, dtype: str) -> dict[str, Any]:
    """The config.json of a model that was trained on sequences of `length`; `dtype`: "float32", "bfloat16" or "float16".

    Raises ConfigError for a shape that no Hugging Face model of the family has.
    """
    kind = _model_type(model)
    common = {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "vocab_size": model.vocab,
        "initializer_range": model.init_std,
        "tie_word_embeddings": model.tied_embeddings,
        "torch_dtype": dtype,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return common | (_gpt2_config(model) if kind == "gpt2" else _rotary_config(model, kind, length))


def _model_type(model: ModelConfig) -> str:
    if model.family == "gpt2" and (model.window or model.kv_heads != model.heads or model.head_dim * model.heads != model.hidden):
        fault = "transformers' GPT-2 has no window, no grouped queries and no head_dim of its own: there is no config.json for this shape"
        raise ConfigError(fault, key="model.family", value=model.family)
    if model.family == "llama" and (model.window or model.hidden % model.heads):
        return "mistral"  # the same model, with a window, and free in its head_dim
    return model.family


def _gpt2_config(model: ModelConfig) -> dict[str, Any]:
    return {
        "n_positions": model.max_positions,
        "n_ctx": model.max_positions,
        "n_embd": model.hidden,
        "n_layer": model.layers,
        "n_head": model.heads,
        "n_inner": model.ffn,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": model.norm_eps,
        "resid_pdrop": model.dropout,
        "embd_pdrop": model.dropout,
        "attn_pdrop": model.attention_dropout,
    }


def _rotary_config(model: ModelConfig, kind: str, length: int) -> dict[str, Any]:
    scaling = model.rope_scaling
    reach = int((scaling.original_length or length) * scaling.factor) if scaling else length
    config: dict[str, Any] = {
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": max(length, reach),
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "rope_scaling": _hf_scaling(scaling) if scaling else None,
        "attention_dropout": model.attention_dropout,
    }
    if kind == "mistral":
        return config | {"sliding_window": model.window}
    if kind in ("qwen2", "qwen3"):
        layers = 0 if model.window else model.layers
        return config | {"use_sliding_window": bool(model.window), "sliding_window": model.window, "max_window_layers": layers}
    return config | {"attention_bias": False, "mlp_bias": False}


def _hf_scaling(scaling: RopeScaling) -> dict[str, Any]:
    found: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.original_length is not None:
        found["original_max_position_embeddings"] = scaling.original_length
    if scaling.kind == "llama3":
        return found | {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
    if scaling.kind == "yarn":
        own = {"attention_factor": scaling.attention_factor} if scaling.attention_factor is not None else {}
        return found | {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow} | own
    return found
