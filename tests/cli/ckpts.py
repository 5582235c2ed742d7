"""Runs with checkpoints for tests of `slurmtrain ckpt`: as submit makes them, without the submitting."""

from __future__ import annotations

from typing import Any

import numpy as np

from slurmtrain.atomic import to_json
from slurmtrain.config.data import DataConfig
from slurmtrain.config.job import CheckpointConfig, JobConfig, RunConfig
from slurmtrain.config.model import ModelConfig
from slurmtrain.config.site import SiteConfig, SiteNode, SiteStorage
from slurmtrain.config.training import TrainingConfig
from slurmtrain.rundir import RunDir
from tests.checkpoint.stored import store
from tests.cli.desk import Desk

MODEL = ModelConfig(layers=2, hidden=32, heads=2, kv_heads=2, ffn=48, vocab=64)
LAYOUT = {"world": 16, "tp": 2, "cp": 1, "ep": 1, "dp": 4, "pp": 2, "dp_mode": "fsdp"}
TENSORS = {
    "model/w": np.arange(60, dtype=np.float32).reshape(6, 10),
    "model/half": ("bfloat16", np.arange(8, dtype=np.uint16)),
    "optimizer/w/exp_avg": np.ones((6, 10), np.float32),
    "rng/pp0-dp0-ep0-cp0-tp0/cpu": np.arange(40, dtype=np.uint8),
}


def make_run(desk: Desk, name: str = "job", *, purge_days: int | None = None, **checkpoint: Any) -> RunDir:
    """A run that no job belongs to; `checkpoint`: keys of its job."""
    run = RunDir(desk.root / name)
    run.create()
    training = TrainingConfig(steps=100, sequence_length=32, global_batch=8)
    data = DataConfig(path=desk.folder / "tokens")
    job = JobConfig(run=RunConfig(name=name), model=MODEL, data=data, training=training, checkpoint=CheckpointConfig(**checkpoint))
    site = SiteConfig(name="mysite", node=SiteNode(gpus=4), storage=SiteStorage(purge_days=purge_days, quota="off"))
    for path, model in ((run.job_json, job), (run.site_json, site)):
        path.write_bytes(to_json(model.model_dump(mode="json", exclude_none=True)))
    return run


def save(desk: Desk, run: RunDir, *steps: int, **more: Any) -> None:
    """Checkpoints of these steps, a minute and step apart, in two files each; the newest was written now."""
    for step in steps:
        fields = {"files": 2, "layout": LAYOUT, "t": desk.clock.time() - (max(steps) - step) * 60, **more}
        store(run.checkpoint(step), step, TENSORS, **fields)
