"""Patterns of names are held against the model's own tensors before anything is submitted.

Broken: a misspelt name in no_decay changes nothing, and the run decays what it was told to leave alone.
"""

from __future__ import annotations

import pytest

from slurmtrain.config.job import JobConfig
from slurmtrain.errors import ConfigError
from slurmtrain.models.patterns import check_patterns

LLAMA = {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 48, "vocab": 63}
GPT2 = LLAMA | {"family": "gpt2", "kv_heads": 4, "max_positions": 16}


def job(*patterns, model=LLAMA):
    training = {"steps": 1, "sequence_length": 8, "global_batch": 1}
    return JobConfig.model_validate(
        {"run": {"name": "r"}, "model": model, "data": {"path": "/d"}, "training": training, "optimizer": {"no_decay": patterns}}
    )


def test_what_fits_a_tensor_passes():
    check_patterns(job("embedding.*", "layers.*.attention.q.weight", "layers.1.ffn.*", "head.weight"))
    check_patterns(job("positions.weight", model=GPT2))
    check_patterns(job())


@pytest.mark.parametrize("pattern", ["embeddings.*", "layers.*.attention.qkv.weight", "layers.2.ffn.*", "positions.weight", "Head.weight"])
def test_what_fits_none_is_named_with_the_names_there_are(pattern):
    with pytest.raises(ConfigError) as caught:
        check_patterns(job("embedding.*", pattern), where="job.toml")
    line = str(caught.value)
    assert line.startswith(f"job.toml: optimizer.no_decay[1] = '{pattern}': fits no tensor of the model: its names are embedding.weight, ")
    assert "layers.0.attention.q.weight" in line
    assert "layers.1" not in line
