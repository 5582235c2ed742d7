"""config.json of published models becomes our presets' shapes; what we have not is refused by name; a job needs to say nothing."""

from __future__ import annotations

import json

import pytest

from slurmtrain.config.hf import model_keys
from slurmtrain.config.load import load_job
from slurmtrain.config.model import ModelConfig
from slurmtrain.config.presets import preset_shape
from slurmtrain.errors import ConfigError
from tests.config.bad_files import GOOD_JOB

LLAMA31_8B = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
QWEN3_4B = {
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN25_14B = {
    "hidden_act": "silu",
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "max_position_embeddings": 131072,
    "max_window_layers": 48,
    "model_type": "qwen2",
    "num_attention_heads": 40,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
GPT2 = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "vocab_size": 50257,
}
PUBLISHED = {"llama3.1-8b": LLAMA31_8B, "qwen3-4b": QWEN3_4B, "qwen2.5-14b": QWEN25_14B, "gpt2": GPT2}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_config_is_the_preset(name):
    assert ModelConfig(**model_keys(PUBLISHED[name])) == ModelConfig(**preset_shape(name))


def test_scalings_and_windows_of_other_ages_of_transformers():
    newer = {k: v for k, v in LLAMA31_8B.items() if k not in ("rope_theta", "rope_scaling")}
    newer["rope_parameters"] = LLAMA31_8B["rope_scaling"] | {"rope_theta": 500000.0}
    assert model_keys(newer) == model_keys(LLAMA31_8B)
    yarn = model_keys(QWEN25_14B | {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}})
    assert yarn["rope_scaling"] == {"kind": "yarn", "factor": 4.0, "original_length": 32768}
    windowed = model_keys(QWEN25_14B | {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 0})
    assert windowed["window"] == 4096
    assert "window" not in model_keys(QWEN25_14B | {"use_sliding_window": True, "sliding_window": 4096})
    mistral = {k: v for k, v in LLAMA31_8B.items() if k != "rope_scaling"} | {"model_type": "mistral", "sliding_window": 4096}
    assert (model_keys(mistral)["family"], model_keys(mistral)["window"]) == ("llama", 4096)


REFUSED = {
    "family": ({"model_type": "qwen3_moe"}, r"model_type = 'qwen3_moe': no family of ours: there are llama, mistral, qwen2, qwen3, gpt2"),
    "quantised": ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config: quantised weights"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act = 'gelu': is not among the features"),
    "bias": ({"attention_bias": True}, "attention_bias = True"),
    "mlp bias": ({"mlp_bias": True}, "mlp_bias = True"),
    "scaling": ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type = 'dynamic': .* llama3, yarn, linear"),
    "part of a head": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    "mscale": (
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0, "mscale_all_dim": 0.7}},
        "mscale = 1.0: yarn with mscale",
    ),
    "truncate": ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": False}}, "truncate = False"),
    "no size": ({"hidden_size": None}, "config.json: hidden_size: must be a whole number"),
    "mixed windows": (
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 3},
        "layer_types: some layers with a sliding window and some without",
    ),
}


@pytest.mark.parametrize("change, says", REFUSED.values(), ids=REFUSED.keys())
def test_what_we_have_not_is_refused_by_its_name(change, says):
    with pytest.raises(ConfigError, match=says):
        model_keys(LLAMA31_8B | change)


@pytest.mark.parametrize(
    "change", [{"activation_function": "relu"}, {"scale_attn_by_inverse_layer_idx": True}, {"add_cross_attention": True}]
)
def test_gpt2_of_another_kind_is_refused(change):
    with pytest.raises(ConfigError, match=next(iter(change))):
        model_keys(GPT2 | change)


@pytest.fixture
def load(tmp_path):
    """Loads a job beside a folder `hub` of config.json and (empty) weights."""
    hub = tmp_path / "hub"
    hub.mkdir()
    (hub / "config.json").write_text(json.dumps(QWEN3_4B))
    (hub / "model.safetensors").write_bytes(b"")

    def load(text):
        (tmp_path / "job.toml").write_text(GOOD_JOB.replace('preset = "tiny"', text))
        return load_job(tmp_path / "job.toml", env={}, policy_path=tmp_path / "none.toml").model

    load.hub = hub
    return load


def test_a_job_says_the_weights_alone(load):
    model = load('weights = "hub"')
    assert model.weights == load.hub
    assert model == ModelConfig(weights=load.hub, **preset_shape("qwen3-4b"))


def test_what_the_job_says_wins_where_the_shape_allows(load):
    model = load('weights = "hub"\nrope_theta = 5e6\ndropout = 0.1\ntied_embeddings = false')
    assert (model.rope_theta, model.dropout, model.tied_embeddings, model.layers) == (5e6, 0.1, False, 36)
    assert load('preset = "qwen3-4b"\nweights = "hub"').preset == "qwen3-4b"


BAD_JOBS = {
    "another size": ('weights = "hub"\nhidden = 64', r"job.toml: model.hidden = 64: the weights in .*hub have 2560: leave it out"),
    "another preset": ('preset = "tiny"\nweights = "hub"', r"model.layers = 4: the weights in .* have 36"),
    "no folder": ('weights = "hubb"', r"job.toml: model.weights = '.*hubb': no such folder"),
    "no config": ('weights = "."', r"job.toml: model.weights = .*: has no config.json"),
    "head kept apart": (
        'weights = "untied"\ntied_embeddings = true',
        r"model.tied_embeddings = True: the weights in .*untied have a head of their own",
    ),
    "no weights": ('weights = "bare"', r"job.toml: model.weights = '.*bare': has neither model.safetensors nor .* \(there is old.bin\)"),
    "missing shard": ('weights = "torn"', r"index.json: names model-00002-of-00002.safetensors, which is not beside it"),
    "damaged index": ('weights = "broken"', r'model.safetensors.index.json: is damaged: no JSON object with a "weight_map"'),
    "not json": ('weights = "letters"', r"letters/config.json: cannot be read: not JSON"),
    "another family": ('weights = "moe"', r"moe/config.json: model_type = 'mixtral': no family of ours"),
    "bad value": ('weights = "odd"', r"odd/config.json: model.norm_eps"),
}


@pytest.mark.parametrize("text, says", BAD_JOBS.values(), ids=BAD_JOBS.keys())
def test_weights_that_do_not_do_are_one_line_on_the_submitting_side(load, text, says):
    def folder(name, config, *files):
        (load.hub.parent / name).mkdir()
        (load.hub.parent / name / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
        for file, content in files:
            (load.hub.parent / name / file).write_text(content)

    index, single = "model.safetensors.index.json", ("model.safetensors", "")
    folder("untied", QWEN3_4B | {"tie_word_embeddings": False}, single)
    folder("bare", QWEN3_4B, ("old.bin", ""))
    folder("torn", QWEN3_4B, (index, json.dumps({"weight_map": {"a": "model-00002-of-00002.safetensors"}})))
    folder("broken", QWEN3_4B, (index, "[]"))
    folder("letters", "{", single)
    folder("moe", {"model_type": "mixtral"}, single)
    folder("odd", QWEN3_4B | {"rms_norm_eps": "small"}, single)
    with pytest.raises(ConfigError, match=says) as caught:
        load(text)
    assert "\n" not in str(caught.value)
