"""Peaks of devices by the name that a site gives them (`[node] gpu`): the table in `hardware.toml`, with its source."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from slurmtrain.config.tomlfile import read_toml
from slurmtrain.config.training import TrainingConfig


def peak_tflops(gpu: str | None, training: TrainingConfig) -> float | None:
    """Dense peak of one device for what multiplies in the training; None where the table does not know it.

    fp8 counts where torchao multiplies in it; emulated fp8 multiplies in the training's dtype.
    """
    if gpu is None or training.dtype == "fp32":
        return None
    kind = "fp8" if training.matmul == "torchao-fp8" else "bf16"
    peak = _table().get(gpu, {}).get(kind)
    return None if peak is None else float(peak)


def known_gpus() -> list[str]:
    """Names in the table."""
    return sorted(_table())


def _table() -> dict[str, dict[str, float]]:
    return read_toml(Path(str(files("slurmtrain.config") / "hardware.toml")), "table of hardware")
