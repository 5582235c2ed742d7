"""A config.json with anything under any key: a shape, or one line that names the file."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from slurmtrain.config.hf import model_of
from slurmtrain.errors import ConfigError

PLAIN: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 300,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "rope_parameters": None,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "use_sliding_window": True,
    "sliding_window": 16,
    "max_window_layers": 0,
    "layer_types": None,
    "quantization_config": None,
    "attention_bias": False,
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 64, "n_positions": 64, "vocab_size": 300, "layer_norm_epsilon": 1e-5}
ROPE = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32, "beta_fast": 8, "beta_slow": 1, "mscale": None}
JUNK = [None, "x", "", -1, 0, 1.5, 7, True, 10**30, math.inf, math.nan, [], [[]], ["full_attention"], {}, {"a": {"b": 1}}, [None, 3]]


def cases():
    for kind in ("llama", "mistral", "qwen2", "qwen3", "gpt2"):
        plain = {"model_type": kind, **(GPT2 if kind == "gpt2" else PLAIN)}
        yield plain
        yield from ({**plain, key: value} for key in plain for value in JUNK)
        if kind != "gpt2":
            yield from ({**plain, "rope_scaling": {**ROPE, key: value}} for key in ROPE for value in JUNK)
            yield from ({**plain, "rope_parameters": {**ROPE, key: value}} for key in (*ROPE, "rope_theta") for value in JUNK)


def test_any_value_under_any_key_is_a_shape_or_one_line(tmp_path):
    shapes = refused = 0
    for values in cases():
        (tmp_path / "config.json").write_text(json.dumps(values))
        try:
            model = model_of(tmp_path)
        except ConfigError as error:
            assert str(error).startswith(f"{tmp_path}/config.json: "), values  # noqa: PT017 each of many
            assert "\n" not in str(error), values  # noqa: PT017
            refused += 1
        else:
            assert model.parameters() > 0
            shapes += 1
    assert shapes > 100
    assert refused > 1000


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "rope_parameters: positions that differ between layers"),
        ({"rope_scaling": "yarn"}, "rope_scaling = 'yarn': must be an object"),
        ({"sliding_window": "all"}, "sliding_window = 'all': must be a whole number from 1 on"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers = 1000000000000: must be a whole number from 1 to 2147483647"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "layer_types: some layers with a sliding window"),
    ],
)
def test_what_would_be_read_wrong_is_refused_by_its_name(tmp_path, changes, says):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", **PLAIN, **changes}))
    with pytest.raises(ConfigError, match=says):
        model_of(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "[" * 100_000, "\x00"])
def test_what_is_no_object_is_one_line(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config.json: (cannot be read: not JSON|not a JSON object)"):
        model_of(tmp_path)


def test_a_file_where_a_folder_belongs(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="is a file: give the folder that it is in"):
        model_of(tmp_path / "config.json")
