"""Shapes of published models: parameter counts as published. Broken: plans and FLOPs are of another model."""

from __future__ import annotations

import doctest
import importlib

import pytest

from slurmtrain.config.model import ModelConfig
from slurmtrain.config.presets import preset_names, preset_shape

# Totals of the safetensors index of each model on the Hugging Face hub (405B: the release with 8 kv heads).
PUBLISHED = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-1b": 1_235_814_400,
    "llama3-3b": 3_212_749_824,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_count_is_the_published_one(name):
    assert ModelConfig(**preset_shape(name)).parameters() == PUBLISHED[name]


def test_own_presets_are_small_and_hold_byte_tokens():
    for name, most in (("tiny", 5e5), ("small", 2e7)):
        shape = ModelConfig(**preset_shape(name))
        assert shape.parameters() < most
        assert shape.vocab >= 257
        assert shape.vocab % 8 == 0


def test_presets_say_all_that_a_shape_needs_and_no_head_dim():
    assert set(preset_names()) == {*PUBLISHED, "tiny", "small"}
    for name in preset_names():
        shape = preset_shape(name)
        assert {"layers", "hidden", "heads", "kv_heads", "ffn", "vocab"} <= set(shape)
        assert "head_dim" not in shape, "it would not follow a changed hidden"


def test_names_come_small_models_first():
    names = preset_names()
    assert names.index("tiny") < names.index("llama3-8b") < names.index("llama3-405b")


@pytest.mark.parametrize("module", ["refusal", "expand", "keys", "overrides", "sbatch_options"])
def test_examples_in_docstrings_hold(module):
    result = doctest.testmod(importlib.import_module(f"slurmtrain.config.{module}"))
    assert result.attempted > 0
    assert result.failed == 0
