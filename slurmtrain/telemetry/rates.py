"""How fast a step was, and what share of the hardware that is.

    MFU = tokens/s of one device x FLOPs of one token under a rule / peak FLOP/s       (Chowdhery et al. 2022, appendix B)
    HFU counts what recomputation multiplies once more besides: a second forward pass of the recomputed layers, a third of
    their FLOPs (Korthikanti et al. 2022, section 6.3)

A figure says little without its rule and its peak; both stand in the `start` event.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from slurmtrain.config.hardware import peak_tflops
from slurmtrain.config.job import JobConfig
from slurmtrain.config.site import SiteConfig
from slurmtrain.telemetry.flops import flops_per_token


@dataclass(frozen=True)
class Yardstick:
    """What MFU is measured by. `peak_tflops`: of one device, None where nobody knows it; `peak_of`: where it comes from."""

    flops_rule: str
    flops_per_token: float
    hardware_flops_per_token: float
    peak_tflops: float | None
    peak_of: str

    def to_fields(self) -> dict[str, Any]:
        return asdict(self)


def yardstick(job: JobConfig, site: SiteConfig) -> Yardstick:
    """Of a job on a site: the peak that the job gives, else the table's for the site's GPU."""
    rule = job.metrics.flops_rule
    model = flops_per_token(job.model, job.training.sequence_length, rule)
    peak, source = job.metrics.peak_tflops, "metrics.peak_tflops"
    if peak is None:
        peak, source = peak_tflops(site.node.gpu, job.training), site.node.gpu or ""
    return Yardstick(rule, model, model + _again(job, model), peak, source if peak is not None else "")


def _again(job: JobConfig, flops: float) -> float:
    """FLOPs of one token that full recomputation adds: the forward pass of every n-th layer."""
    training, model = job.training, job.model
    if training.recompute != "full":
        return 0.0
    outside = 6.0 * model.vocab * model.hidden * (2 if job.metrics.flops_rule == "palm" and not model.tied_embeddings else 1)
    share = -(-model.layers // training.recompute_every) / model.layers
    return (flops - outside) / 3 * share


def rates(yard: Yardstick, *, tokens: int, seconds: float, devices: int) -> dict[str, float]:
    """tokens_per_s, tokens_per_s_per_gpu and, where the peak is known, mfu, and hfu where it differs.

    >>> yard = Yardstick("palm", 6e9, 8e9, 600.0, "metrics.peak_tflops")
    >>> rates(yard, tokens=400_000, seconds=2.0, devices=4)
    {'tokens_per_s': 200000.0, 'tokens_per_s_per_gpu': 50000.0, 'mfu': 0.5, 'hfu': 0.666667}
    """
    if seconds <= 0:
        return {}
    speed = tokens / seconds
    told = {"tokens_per_s": round(speed, 3), "tokens_per_s_per_gpu": round(speed / devices, 3)}
    if yard.peak_tflops is not None:
        peak = yard.peak_tflops * 1e12 * devices
        told["mfu"] = round(speed * yard.flops_per_token / peak, 6)
        if yard.hardware_flops_per_token > yard.flops_per_token:
            told["hfu"] = round(speed * yard.hardware_flops_per_token / peak, 6)
    return told
