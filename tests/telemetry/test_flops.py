"""FLOPs per token against published figures: shape, throughput and utilisation as the publishers print them."""

from __future__ import annotations

import pytest

from slurmtrain.config.model import ModelConfig
from slurmtrain.telemetry.flops import flops_per_token

PALM_540B = ModelConfig(layers=118, hidden=18432, heads=48, kv_heads=1, head_dim=256, ffn=73728, vocab=256000, tied_embeddings=True)
LLAMA2_70B = ModelConfig(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=32000)
LLAMA3_8B = ModelConfig(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
LLAMA3_70B = ModelConfig(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=128256)


def test_palm_540b_reaches_the_mfu_of_its_paper():
    """Chowdhery et al. 2022, section 4.1 and table 3: 238.3K tokens/s on 6144 TPU v4 of 275 TFLOP/s are 46.2 % MFU."""
    mfu = flops_per_token(PALM_540B, 2048, "palm") * 238.3e3 / (6144 * 275e12)
    assert mfu == pytest.approx(0.462, abs=0.0005)


@pytest.mark.parametrize(
    "model, sequence_length, tokens_per_s, tflops",
    [(LLAMA2_70B, 4096, 1717, 763), (LLAMA3_8B, 8192, 11883, 688), (LLAMA3_70B, 8192, 1549, 746)],
)
def test_full_rule_is_that_of_nemo(model, sequence_length, tokens_per_s, tflops):
    """NVIDIA NeMo 24.07 performance summary: tokens/s and TFLOP/s of one GPU."""
    assert flops_per_token(model, sequence_length, "full") * tokens_per_s / 1e12 == pytest.approx(tflops, rel=0.002)


def test_causal_rule_is_that_of_megatron_bridge():
    """Megatron-Bridge 26.06 performance summary, Llama 3 70B at length 4096 on GB300: 4819 tokens/s and 2083 TFLOP/s of one GPU."""
    assert flops_per_token(LLAMA3_70B, 4096, "causal") * 4819 / 1e12 == pytest.approx(2083, rel=0.005)


def test_an_unknown_rule_names_those_that_there_are():
    with pytest.raises(ValueError, match="palm, full, causal"):
        flops_per_token(LLAMA3_8B, 8192, "chinchilla")
