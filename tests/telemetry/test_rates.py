"""Rates, and shares of the peak, against published figures and closed forms."""

from __future__ import annotations

import pytest

from slurmtrain.config.job import JobConfig
from slurmtrain.config.site import SiteConfig
from slurmtrain.telemetry.rates import Yardstick, rates, yardstick

MODEL = {"layers": 4, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 48, "vocab": 258}


def job(*, model=None, metrics=None, **training) -> JobConfig:
    return JobConfig.model_validate(
        {
            "run": {"name": "x"},
            "model": MODEL | (model or {}),
            "data": {"path": "/d"},
            "training": {"steps": 1, "sequence_length": 16, "global_batch": 8, "dtype": "bf16", **training},
            "metrics": metrics or {},
        }
    )


def site(gpu: str | None) -> SiteConfig:
    return SiteConfig.model_validate({"name": "s", "node": {"gpus": 8, "gpu": gpu}})


def test_palms_own_mfu():
    """PaLM 540B on 6144 TPU v4 (275 TFLOPS): 238.3k tokens/s are 46.2 % (Chowdhery et al. 2022, table 3 and appendix B)."""
    flops = 6 * 540.35e9 + 12 * 118 * 48 * 256 * 2048
    yard = Yardstick("palm", flops, flops, 275.0, "published")
    told = rates(yard, tokens=238_300 * 10, seconds=10.0, devices=6144)
    assert told["mfu"] == pytest.approx(0.462, abs=5e-4)
    assert "hfu" not in told
    assert told["tokens_per_s_per_gpu"] == pytest.approx(238_300 / 6144, rel=1e-4)


@pytest.mark.parametrize(
    ("gpu", "given", "training", "peak"),
    [
        ("NVIDIA H100 SXM", None, {}, 989.0),
        ("NVIDIA H100 SXM", None, {"dtype": "fp16"}, 989.0),
        ("NVIDIA H100 SXM", None, {"matmul": "torchao-fp8"}, 1979.0),
        ("NVIDIA H100 SXM", None, {"matmul": "fp8-emulated"}, 989.0),
        ("NVIDIA H100 SXM", None, {"dtype": "fp32"}, None),
        ("NVIDIA H100 SXM", 500.0, {"dtype": "fp32"}, 500.0),
        ("My GPU", None, {}, None),
        (None, None, {}, None),
        (None, 12.5, {}, 12.5),
    ],
)
def test_where_the_peak_comes_from(gpu, given, training, peak):
    yard = yardstick(job(metrics={"peak_tflops": given}, **training), site(gpu))
    assert yard.peak_tflops == peak
    assert yard.peak_of == ("" if peak is None else "metrics.peak_tflops" if given else gpu)
    assert ("mfu" in rates(yard, tokens=1000, seconds=1.0, devices=1)) == (peak is not None)


@pytest.mark.parametrize(("rule", "tied"), [("palm", False), ("full", False), ("causal", False), ("palm", True), ("full", True)])
def test_full_recomputation_adds_the_layers_forward_pass(rule, tied):
    """A third of what the layers take: 2 of 6 FLOPs a weight, 4 of 12 (2 of 6) LHET of attention; nothing of embedding and head."""
    told = yardstick(job(model={"tied_embeddings": tied}, metrics={"flops_rule": rule}, recompute="full"), site(None))
    weights = 4 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48 + 2 * 32) + 32
    attention = (2 if rule == "causal" else 4) * 4 * 4 * 8 * 16
    assert told.hardware_flops_per_token - told.flops_per_token == pytest.approx(2 * weights + attention)
    half = yardstick(job(model={"tied_embeddings": tied}, metrics={"flops_rule": rule}, recompute="full", recompute_every=2), site(None))
    assert half.hardware_flops_per_token - half.flops_per_token == pytest.approx((2 * weights + attention) / 2)
    selective = yardstick(job(recompute="selective"), site(None))
    assert selective.hardware_flops_per_token == selective.flops_per_token


def test_no_time_no_rates():
    assert rates(Yardstick("palm", 1.0, 1.0, None, ""), tokens=5, seconds=0.0, devices=1) == {}
