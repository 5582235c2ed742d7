"""Optimisers that need whole matrices are refused where a layout cuts them, with what would do."""

from __future__ import annotations

import pytest

from slurmtrain.config.job import JobConfig
from slurmtrain.config.optimizer import optimizer_fault


def job(name, **parallel):
    return JobConfig.model_validate(
        {
            "run": {"name": "r"},
            "model": {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 4, "ffn": 64, "vocab": 64},
            "data": {"path": "/data"},
            "training": {"steps": 1, "sequence_length": 16, "global_batch": 8},
            "optimizer": {"name": name},
            "parallel": parallel,
        }
    )


@pytest.mark.parametrize("name", ["muon", "adafactor"])
def test_whole_matrices_only(name):
    assert optimizer_fault(job(name, pp=2, cp=2)) is None
    assert "parallel.tp = 2 cuts" in optimizer_fault(job(name, tp=2))
    for mode in ("zero1", "zero2", "fsdp"):
        fault = optimizer_fault(job(name, dp_mode=mode))
        assert mode in fault
        assert 'use dp_mode = "ddp", or adamw' in fault


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_elementwise_ones_go_with_everything(name):
    assert optimizer_fault(job(name, tp=2, dp_mode="fsdp")) is None
