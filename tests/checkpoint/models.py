"""Runs with the checkpoint of a small model, for tests of import and export."""

from __future__ import annotations

from pathlib import Path

import torch

from slurmtrain.atomic import to_json
from slurmtrain.boxes import Part, whole
from slurmtrain.checkpoint.group import SoloGroup
from slurmtrain.checkpoint.state import save_checkpoint
from slurmtrain.config.data import DataConfig
from slurmtrain.config.job import JobConfig, RunConfig
from slurmtrain.config.model import ModelConfig
from slurmtrain.config.training import TrainingConfig
from slurmtrain.rundir import RunDir


def whole_part(name: str, tensor: torch.Tensor) -> Part:
    shape = tuple(tensor.shape)
    return Part(name, shape, whole(shape), tuple((0, n) for n in shape))


def parts_of(module: torch.nn.Module, prefix: str = "") -> list[tuple[Part, torch.Tensor]]:
    """Every parameter, whole, under its global name."""
    return [(whole_part(prefix + name, p), p.detach()) for name, p in module.named_parameters()]


def run_of(
    folder: Path, model: ModelConfig, *modules: tuple[int, torch.nn.Module], ema: torch.nn.Module | None = None
) -> tuple[RunDir, JobConfig]:
    """A run of a model with a checkpoint for each (step, module); `ema`: a moving average kept in all of them."""
    run = RunDir(folder / "run")
    run.create()
    training = TrainingConfig(steps=10, sequence_length=32, global_batch=8)
    job = JobConfig(run=RunConfig(name="run"), model=model, data=DataConfig(path=folder / "tokens"), training=training)
    run.job_json.write_bytes(to_json(job.model_dump(mode="json", exclude_none=True)))
    for step, module in modules:
        average = parts_of(ema, "ema/") if ema else []
        save_checkpoint(
            run,
            step=step,
            attempt=1,
            tokens=0,
            layout={},
            entries=parts_of(module, "model/") + average,
            state={},
            group=SoloGroup(),
            owner_check=lambda: None,
            keep=9,
        )
    return run, job
