"""Shapes of published models: parameter counts as published. Broken: plans and FLOPs are of another model."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

import slurmtrain.config
from slurmtrain.config.model import ModelConfig
from slurmtrain.config.presets import preset_names, preset_shape

# Totals of the safetensors of each model on the Hugging Face hub, a head stored beside tied embeddings not counted twice (405B: the
# release with 8 kv heads; Qwen3's tied models: `num_parameters()` of transformers).
PUBLISHED = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-1b": 1_235_814_400,
    "llama3-3b": 3_212_749_824,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "llama3.1-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
}
# Billions without embeddings, as the model cards of Qwen print them.
WITHOUT_EMBEDDINGS = {
    "qwen2.5-0.5b": 0.36,
    "qwen2.5-1.5b": 1.31,
    "qwen2.5-3b": 2.77,
    "qwen2.5-7b": 6.53,
    "qwen2.5-14b": 13.1,
    "qwen2.5-32b": 31.0,
    "qwen2.5-72b": 70.0,
    "qwen3-0.6b": 0.44,
    "qwen3-1.7b": 1.4,
    "qwen3-4b": 3.6,
    "qwen3-8b": 6.95,
    "qwen3-14b": 13.2,
    "qwen3-32b": 31.2,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_count_is_the_published_one(name):
    assert ModelConfig(**preset_shape(name)).parameters() == PUBLISHED[name]


@pytest.mark.parametrize("name", WITHOUT_EMBEDDINGS)
def test_parameter_count_without_embeddings_is_that_of_the_card(name):
    shape = ModelConfig(**preset_shape(name))
    matrices = 1 if shape.tied_embeddings else 2
    inner = (shape.parameters() - matrices * shape.vocab * shape.hidden) / 1e9
    assert inner == pytest.approx(WITHOUT_EMBEDDINGS[name], rel=0.015)


def test_gpt3_is_that_of_its_paper():
    """Brown et al. 2020, table D.1: 174,600 million parameters."""
    assert ModelConfig(**preset_shape("gpt3-175b")).parameters() / 1e6 == pytest.approx(174_600, abs=50)


def test_own_presets_are_small_and_hold_byte_tokens():
    for name, most in (("tiny", 5e5), ("small", 2e7)):
        shape = ModelConfig(**preset_shape(name))
        assert shape.parameters() < most
        assert shape.vocab >= 257
        assert shape.vocab % 8 == 0


def test_presets_say_all_that_a_shape_needs_and_head_dim_where_it_is_one_of_its_own():
    assert set(preset_names()) == {*PUBLISHED, "tiny", "small", "gpt3-175b"}
    for name in preset_names():
        shape = preset_shape(name)
        assert {"layers", "hidden", "heads", "kv_heads", "ffn", "vocab"} <= set(shape)
        assert "head_dim" not in shape or shape["head_dim"] * shape["heads"] != shape["hidden"], "it would not follow a changed hidden"


def test_every_preset_says_where_it_is_from():
    for path in sorted((Path(slurmtrain.config.__file__).parent / "presets").glob("*.toml")):
        first = path.read_text().splitlines()[0]
        assert re.search(r"config\.json|arXiv|not published", first) or path.stem == "tiny", path


def test_names_come_small_models_first():
    names = preset_names()
    assert names.index("tiny") < names.index("llama3-8b") < names.index("llama3-405b")


@pytest.mark.parametrize("module", ["refusal", "expand", "keys", "overrides", "presets", "sbatch_options"])
def test_examples_in_docstrings_hold(module):
    result = doctest.testmod(importlib.import_module(f"slurmtrain.config.{module}"))
    assert result.attempted > 0
    assert result.failed == 0
