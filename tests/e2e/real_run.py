"""Runs of the real trainer on the session's cluster: submit, watch by files and by `slurmtrain status`, compare losses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.events import Event
from slurmtrain.telemetry.reader import read_events, steps
from tests.fixtures_slurm import SlurmCluster

SLURMTRAIN = Path(sys.executable).with_name("slurmtrain")
STEPS = 100

JOB = """\
[model]
preset = "tiny"
layers = 2
vocab = 320

[data]
path = "data"

[training]
steps = {steps}
sequence_length = 32
global_batch = 8

[optimizer]
lr = 3e-3
warmup_steps = 5

[parallel]
tp = 2

[checkpoint]
every_steps = 10

[slurm]
nodes = 2
gpus_per_node = 2
time = "10:00"

[environment]
A = "1,2"
B = "x y"
C = "64(x2)"
D = "it's $HOME"
"""


@dataclass(frozen=True)
class Bench:
    """A root folder, a job file and data, and a cluster to run it on."""

    cluster: SlurmCluster
    root: Path
    job: Path

    def cli(
        self, *args: str | Path, env: Mapping[str, str] | None = None, check: bool = True, timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        return self.cluster.run([SLURMTRAIN, *args], env=env, check=check, timeout_s=timeout_s, cwd=self.root)

    def submit(self, name: str, *options: str, env: Mapping[str, str] | None = None) -> str:
        """`slurmtrain submit`; the job id."""
        said = self.cli("submit", self.job, "--root", self.root, "-J", name, "--parsable", *options, env=env).stdout
        return said.strip()

    def run(self, name: str) -> RunDir:
        return RunDir(self.root / name)

    def steps(self, name: str) -> dict[int, Event]:
        return steps(read_events(self.run(name).events))

    def losses(self, name: str) -> dict[int, tuple[float, float]]:
        """(loss, gradient norm) of each step."""
        return {step: (event.fields["loss"], event.fields["grad_norm"]) for step, event in self.steps(name).items()}

    def status(self, name: str) -> dict[str, Any]:
        return dict(json.loads(self.cli("status", name, "--root", self.root, "--json").stdout))

    def wait(self, name: str, what: str, happened: Callable[[], object], timeout_s: float = 120) -> None:
        """Wait; when it is late, fail with what the run says of itself."""
        try:
            self.cluster.wait(what, happened, timeout_s)
        except pytest.fail.Exception as error:
            logs = [*self.run(name).path.glob("slurm-*.out"), *self.run(name).path.glob("attempts/*/node-*.log")]
            tails = "\n".join(f"--- {p.name}\n{p.read_text(errors='replace')[-1500:]}" for p in logs)
            pytest.fail(f"{error}\n{tails}")

    def wait_step(self, name: str, step: int, timeout_s: float = 120) -> None:
        self.wait(name, f"step {step} of {name}", lambda: any(s >= step for s in self.steps(name)), timeout_s)

    def wait_finished(self, name: str, timeout_s: float = 180) -> None:
        self.wait(name, f"{name} finished", self.run(name).finished.exists, timeout_s)


def make_bench(cluster: SlurmCluster, root: Path, steps_: int = STEPS) -> Bench:
    """A job file and byte tokens of some of the standard library's sources."""
    job = root / "job.toml"
    job.write_text(JOB.format(steps=steps_))
    source = Path(json.__file__).parent
    cluster.run([SLURMTRAIN, "data", "build", source, "--out", root / "data"])
    return Bench(cluster, root, job)
