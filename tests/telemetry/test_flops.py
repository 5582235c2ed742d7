"""FLOPs per token against published figures: shape, throughput and utilisation as the publishers print them."""

from __future__ import annotations

import pytest

from slurmtrain.config.model import ModelConfig
from slurmtrain.config.presets import preset_shape
from slurmtrain.telemetry.flops import flops_per_token

PALM_540B = ModelConfig(layers=118, hidden=18432, heads=48, kv_heads=1, head_dim=256, ffn=73728, vocab=256000, tied_embeddings=True)
LLAMA2_70B = ModelConfig(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=32000)
LLAMA3_8B = ModelConfig(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
LLAMA3_70B = ModelConfig(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=128256)
VARIANTS = [
    {"kv_heads": 2},
    {"family": "qwen2", "kv_heads": 3, "tied_embeddings": True},
    {"family": "qwen3", "kv_heads": 2, "head_dim": 16},
    {"family": "gpt2", "kv_heads": 6, "max_positions": 40, "tied_embeddings": True},
]


def preset(name: str) -> ModelConfig:
    return ModelConfig(**preset_shape(name))


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


def test_gpt3_takes_the_compute_of_its_paper():
    """Brown et al. 2020, table D.1: 6 FLOPs per parameter and token, 3.14e23 for 300 billion tokens, attention left out."""
    assert flops_per_token(preset("gpt3-175b"), 1, "palm") * 300e9 == pytest.approx(3.14e23, rel=0.002)


def test_gpt3_under_full_is_three_passes_of_megatron():
    """Narayanan et al. 2021 (arXiv 2104.04473), eq. 3 without its fourth pass (recomputation): 72 l h^2 (1 + s / 6h) + 6 V h."""
    length, layers, hidden, vocab = 2048, 96, 12288, 50257
    expected = 72 * layers * hidden**2 * (1 + length / (6 * hidden)) + 6 * vocab * hidden
    assert flops_per_token(preset("gpt3-175b"), length, "full") == pytest.approx(expected, rel=2e-4)  # biases and norms beside it


@pytest.mark.parametrize("change", VARIANTS, ids=lambda change: change.get("family", "llama"))
def test_full_rule_counts_the_matmuls_that_torch_counts(change):
    """Forward FLOPs that torch's counter sees in the model, times 3; biases and norms are no matmuls, so that they are taken off."""
    import torch
    from torch.nn import functional
    from torch.utils.flop_counter import FlopCounterMode

    from slurmtrain.models.decoder import Decoder

    model = ModelConfig(layers=2, hidden=48, heads=6, ffn=80, vocab=67, **change)
    decoder, length = Decoder(model), 32

    def attend(q, k, v, mask, dropout):
        k, v = (one.repeat_interleave(q.shape[1] // one.shape[1], dim=1) for one in (k, v))
        return functional.softmax(q @ k.mT, dim=-1) @ v

    attend.mask = lambda documents: None
    decoder.attend = attend
    with FlopCounterMode(display=False) as counter:
        decoder(torch.zeros(1, length, dtype=torch.int64))
    vectors = sum(p.numel() for p in decoder.parameters() if p.ndim == 1)
    assert 3 * counter.get_total_flops() == length * (flops_per_token(model, length, "full") - 6 * vectors)


def test_a_window_bounds_what_attention_costs():
    """Counted pair by pair: the tokens that each token of 64 sees through a window of 10."""
    seen = sum(min(t + 0.5, 10 - 10 / 128) for t in range(64)) / 64
    plain, windowed = (ModelConfig(layers=3, hidden=64, heads=4, kv_heads=4, ffn=96, vocab=99, window=w) for w in (None, 10))
    unit = 12 * 3 * 64
    for rule, reach in (("full", 10), ("palm", 10), ("causal", 10 - 100 / 128)):
        assert flops_per_token(windowed, 64, rule) - flops_per_token(windowed, 1, rule) == pytest.approx(
            unit * (reach - (0.5 if rule == "causal" else 1))
        )
    assert flops_per_token(plain, 64, "causal") - flops_per_token(windowed, 64, "causal") == pytest.approx(unit * (32 - 10 + 100 / 128))
    assert seen == pytest.approx(10 - 100 / 128, rel=0.02)


def test_an_unknown_rule_names_those_that_there_are():
    with pytest.raises(ValueError, match="palm, full, causal"):
        flops_per_token(LLAMA3_8B, 8192, "chinchilla")
