"""Run folders for the trainer's tests: a tiny job on tiny data, started under mpiexec, and what it left."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slurmtrain.atomic import SystemDisk
from slurmtrain.config.data import DataConfig
from slurmtrain.config.job import CheckpointConfig, JobConfig, RunConfig, SlurmConfig
from slurmtrain.config.model import ModelConfig
from slurmtrain.config.parallel import ParallelConfig
from slurmtrain.config.site import SiteConfig, SiteFabric, SiteNode, SiteTimeouts
from slurmtrain.config.stored import write_models
from slurmtrain.config.training import OptimizerConfig, TrainingConfig
from slurmtrain.data.build import build
from slurmtrain.fabric.plan import build_plan
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.exitfile import ExitRecord, read_exit_records
from slurmtrain.telemetry.reader import read_events
from tests.mpi_world import Finished, run_command

MODEL = {"layers": 4, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 48, "vocab": 258, "rope_theta": 1000.0}


@dataclass(frozen=True)
class Run:
    """A run folder and the world that its plan needs."""

    run: RunDir
    nodes: int
    tasks_per_node: int

    def attempt(self, number: int, *, disturb: str = "", check: bool = True, timeout_s: float = 240) -> Finished:
        """Start attempt `number`; `disturb`: what `disturbed.py` makes happen on rank 1."""
        folder = self.run.attempt(number)
        folder.create()
        start = {"v": 1, "attempt": number, "nodes": [f"n{i + 1}" for i in range(self.nodes)], "tasks_per_node": self.tasks_per_node}
        folder.attempt_json.write_text(json.dumps(start))
        entry = ["tests.train.disturbed" if disturb else "slurmtrain.train", str(self.run.path)]
        command = [sys.executable, "-m", *entry]
        env = {"SLURMTRAIN_ATTEMPT": str(number), "TEST_DISTURB": disturb}
        return run_command(command, nodes=self.nodes, tasks_per_node=self.tasks_per_node, timeout_s=timeout_s, env=env, check=check)

    def events(self, kind: str, attempt: int | None = None, rank: int = 0) -> list[dict]:
        """Fields of one rank's events of a kind."""
        found = [e for e in read_events(self.run.events) if e.kind == kind and e.rank == rank and attempt in (None, e.attempt)]
        return [dict(e.fields) for e in found]

    def steps(self, attempt: int | None = None) -> list[tuple[int, float, float]]:
        """(step, loss, norm), in the order in which they were trained."""
        return [(e["step"], e["loss"], e["grad_norm"]) for e in self.events("step", attempt)]

    def exits(self, attempt: int) -> dict[int, ExitRecord]:
        return read_exit_records(self.run.attempt(attempt).exit_dir)


def make_data(folder: Path) -> Path:
    """Some 60 kB of words in two documents."""
    random = np.random.default_rng(1)
    words = ["node", "rank", "step", "loss", "while", "return", "(", ")", "\n", "="]
    for number in (1, 2):
        text = " ".join(random.choice(words, 6000))
        (folder / f"text{number}.txt").write_text(text)
    return build([folder / "text1.txt", folder / "text2.txt"], folder / "tokens").folder


def make_job(data: Path, *, model=None, nodes=1, gpus=None, training=None, optimizer=None, every=100, **parallel) -> JobConfig:
    return JobConfig(
        run=RunConfig(name="tiny"),
        model=ModelConfig(**(MODEL | (model or {}))),
        data=DataConfig(path=data),
        training=TrainingConfig(**({"steps": 20, "sequence_length": 16, "global_batch": 8, "clip_norm": 0.5} | (training or {}))),
        optimizer=OptimizerConfig(**({"lr": 1e-2, "warmup_steps": 3, "min_lr": 1e-3} | (optimizer or {}))),
        parallel=ParallelConfig(**parallel),
        checkpoint=CheckpointConfig(every_steps=every, keep=10),
        slurm=SlurmConfig(nodes=nodes, gpus_per_node=gpus),
    )


def make_site() -> SiteConfig:
    timeouts = SiteTimeouts(collective_timeout_s=60, start_timeout_s=60)
    fabric = SiteFabric(kind="loopback", rendezvous_interface="lo")
    return SiteConfig(name="test", launcher="mpiexec", device="cpu", node=SiteNode(gpus=8), fabric=fabric, timeouts=timeouts)


def make_run(folder: Path, job: JobConfig) -> Run:
    run = RunDir(folder)
    run.create()
    site = make_site()
    plan = build_plan(job, site)
    write_models(run, job, site, plan, SystemDisk())
    return Run(run, plan.nodes, plan.gpus_per_node)
