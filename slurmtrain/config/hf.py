"""Hugging Face's config.json as keys of our [model]. What a family of ours has not is refused by its name.

Dropout and first values are no part of a shape: they stay what the job says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from slurmtrain.config.draft import Draft
from slurmtrain.config.model import Family, ModelConfig
from slurmtrain.errors import ConfigError

CONFIG_NAME = "config.json"
FAMILIES: Mapping[str, Family] = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gpt2": "gpt2"}
"""`model_type` to family; mistral is llama with a window."""
SHAPE = ("family", "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "max_positions")
"""Keys that a job cannot say otherwise than the weights that it loads."""
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "partial_rotary_factor": (1.0,),
}
_ONLY_GPT2: Mapping[str, tuple[Any, ...]] = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
}
_MOST = 2**31 - 1
_SCALING: Mapping[str, tuple[str, ...]] = {
    "llama3": ("low_freq_factor", "high_freq_factor"),
    "yarn": ("beta_fast", "beta_slow", "attention_factor"),
    "linear": (),
}
_SIZES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
}
_SIZES_GPT2 = {"layers": "n_layer", "hidden": "n_embd", "heads": "n_head", "vocab": "vocab_size", "max_positions": "n_positions"}


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a folder. Raises ConfigError."""
    path = folder / CONFIG_NAME
    try:
        values = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        other = "is a file: give the folder that it is in" if folder.exists() else "no such folder"
        fault = "has no config.json: give a folder of Hugging Face safetensors" if folder.is_dir() else other
        raise ConfigError(fault, key="model.weights", value=str(folder)) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot be read: {getattr(error, 'strerror', None) or 'not JSON'}", where=str(path)) from None
    if not isinstance(values, dict):
        raise ConfigError("not a JSON object", where=str(path))
    return values


def model_keys(values: Mapping[str, Any], where: str = CONFIG_NAME) -> dict[str, Any]:
    """The keys of [model] that a config.json says. Raises ConfigError naming a family or feature that there is not."""
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        _refuse(where, "model_type", kind, f"no family of ours: there are {', '.join(FAMILIES)}")
    if values.get("quantization_config") is not None:
        _refuse(where, "quantization_config", None, "quantised weights cannot be trained on: use the unquantised release")
    keys = _gpt2(values, where) if kind == "gpt2" else _rotary(values, where)
    return {"family": FAMILIES[kind], **keys}


def model_of(folder: Path) -> ModelConfig:
    """The shape that the config.json of a folder says, checked. Raises ConfigError."""
    where = str(folder / CONFIG_NAME)
    return Draft(model_keys(read_config(folder), where), where).build(ModelConfig)


def _gpt2(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    _check_only(values, _ONLY_GPT2, where)
    sizes = _sizes(values, _SIZES_GPT2, where)
    inner = values.get("n_inner") or 4 * sizes["hidden"]
    return {
        **sizes,
        "kv_heads": sizes["heads"],
        "ffn": inner,
        "head_dim": sizes["hidden"] // sizes["heads"],
        "norm_eps": values.get("layer_norm_epsilon", 1e-5),
        "tied_embeddings": values.get("tie_word_embeddings", True),
    }


def _rotary(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    _check_only(values, _ONLY, where)
    sizes = _sizes(values, _SIZES, where)
    default_dim = 128 if values["model_type"] == "qwen3" else sizes["hidden"] // sizes["heads"]
    rope = _rope(values, where)
    _check_only(rope, _ONLY, where)
    optional = {"rope_scaling": _scaling(rope, values, where), "window": _window(values, sizes["layers"], where)}
    return {
        **sizes,
        "kv_heads": values.get("num_key_value_heads") or sizes["heads"],
        "head_dim": values.get("head_dim") or default_dim,
        "norm_eps": values.get("rms_norm_eps", 1e-6),
        "rope_theta": rope.get("rope_theta") or values.get("rope_theta") or 10_000.0,
        "tied_embeddings": values.get("tie_word_embeddings", False),
        **{key: value for key, value in optional.items() if value is not None},
    }


def _rope(values: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """What is said of rotary positions, for all layers alike."""
    name = "rope_parameters" if values.get("rope_parameters") else "rope_scaling"
    rope = values.get(name) or {}
    if not isinstance(rope, dict):
        _refuse(where, name, rope, "must be an object")
    if any(isinstance(value, dict) for value in rope.values()):
        _refuse(where, name, None, "positions that differ between layers are not among our features")
    return rope


def _sizes(values: Mapping[str, Any], names: Mapping[str, str], where: str) -> dict[str, int]:
    for name in names.values():
        value = values.get(name)
        if type(value) is not int or not 1 <= value <= _MOST:
            _refuse(where, name, value, f"must be a whole number from 1 to {_MOST}")
    return {key: values[name] for key, name in names.items()}


def _check_only(values: Mapping[str, Any], only: Mapping[str, tuple[Any, ...]], where: str) -> None:
    for name, allowed in only.items():
        if values.get(name) is not None and values[name] not in allowed:
            _refuse(where, name, values[name], f"is not among the features of our families, which have {allowed[0]!r} here")


def _scaling(rope: Mapping[str, Any], values: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if not isinstance(kind, str) or kind not in _SCALING:
        _refuse(where, "rope_type", kind, f"no scaling of positions that we have: there are {', '.join(_SCALING)}")
    if kind == "yarn":
        _check_yarn(rope, where)
    if rope.get("factor") is None:
        _refuse(where, "rope_scaling.factor", None, "missing")
    scaling: dict[str, Any] = {"kind": kind, "factor": rope["factor"]}
    if kind != "linear":
        scaling["original_length"] = rope.get("original_max_position_embeddings") or values.get("max_position_embeddings")
    return scaling | {name: rope[name] for name in _SCALING[kind] if rope.get(name) is not None}


def _check_yarn(rope: Mapping[str, Any], where: str) -> None:
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        _refuse(where, "mscale", rope["mscale"], "yarn with mscale is not among our features")
    if rope.get("truncate") is False:
        _refuse(where, "truncate", False, "yarn with unrounded bounds is not among our features")  # noqa: FBT003


def _window(values: Mapping[str, Any], layers: int, where: str) -> int | None:
    """The sliding window that all layers have; a mixture of layers is refused."""
    kind, window = values["model_type"], values.get("sliding_window")
    if kind == "llama" or window is None or (kind != "mistral" and not values.get("use_sliding_window")):
        return None
    if type(window) is not int or window < 1:
        _refuse(where, "sliding_window", window, "must be a whole number from 1 on")
    if kind == "mistral":
        return window
    first = values.get("max_window_layers", 28)
    if type(first) is not int:
        _refuse(where, "max_window_layers", first, "must be a whole number")
    first = min(max(first, 0), layers)
    types = values.get("layer_types") or ["full_attention"] * first + ["sliding_attention"] * (layers - first)
    if not isinstance(types, list) or any(one != types[0] for one in types):
        _refuse(where, "layer_types", None, "some layers with a sliding window and some without are not among our features")
    return window if types[0] == "sliding_attention" else None


def _refuse(where: str, key: str, value: Any, problem: str) -> NoReturn:
    raise ConfigError(problem, where=where, key=key, value=value)
