"""A Slurm cluster of the soak's own (`tools/devcluster`), and one run of the real trainer on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from slurmtrain.resilience.records import AttemptRecord, read_attempts
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.events import Event
from slurmtrain.telemetry.reader import read_events

ROOT = Path(__file__).resolve().parents[2]
DEVCLUSTER, SLURMTRAIN = ROOT / "tools/devcluster", Path(sys.executable).with_name("slurmtrain")
T = TypeVar("T")
POLL_S = 0.2
OVER = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", ""})

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

[checkpoint]
every_steps = 3

[slurm]
nodes = "{nodes}"
gpus_per_node = 2
time = "4:00:00"

[recovery]
exclude_hours = 0.02
backoff_s = 1.0

[recovery.hang]
step_s = {hang_s}
"""


class SoakError(Exception):
    """What did not come about: one line."""


def clean_environ() -> dict[str, str]:
    """This process's environment without anything of a Slurm that it may run under."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH_", "SRUN_", "SALLOC_"))}
    return {**kept, "PATH": f"{SLURMTRAIN.parent}:{kept.get('PATH', '')}:/usr/sbin:/sbin", "OMP_NUM_THREADS": "1"}


class Cluster:
    """Nodes n1 .. on this machine, until `down`. Raises SoakError where a command fails."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder, self.environ = folder, clean_environ()
        self.names = tuple(f"n{number + 1}" for number in range(nodes))
        self.devcluster("up", "--nodes", str(nodes), "--gpus", "2")
        for line in self.devcluster("env").splitlines():
            name, _, value = line.removeprefix("export ").partition("=")
            self.environ[name] = self.run(["sh", "-c", f"printf %s {value}"])

    def devcluster(self, command: str, *args: str) -> str:
        return self.run([str(DEVCLUSTER), command, "--dir", str(self.folder), *args], limit_s=240)

    def run(self, argv: Sequence[str], *, limit_s: float = 120.0, cwd: Path | None = None, check: bool = True) -> str:
        done = subprocess.run(argv, env=self.environ, cwd=cwd, capture_output=True, text=True, timeout=limit_s, check=False)
        if check and done.returncode:
            raise SoakError(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr[-1000:]}")
        return done.stdout

    def job(self, job: str) -> dict[str, str]:
        """What Slurm shows of a job; empty when it has forgotten it."""
        shown = self.run(["scontrol", "show", "job", "-o", job], check=False)
        return dict(part.split("=", 1) for part in shown.split() if "=" in part)

    def down(self) -> None:
        self.devcluster("down")


class Trained:
    """A run that was submitted. `limit_s`: how long anything may take that it is waited for."""

    def __init__(self, cluster: Cluster, root: Path, name: str, *options: str, limit_s: float) -> None:
        self.cluster, self.run, self._limit_s = cluster, RunDir(root / name), limit_s
        argv = [str(SLURMTRAIN), "submit", str(root / "job.toml"), "--root", str(root), "-J", name, "--parsable", *options]
        self.job = cluster.run(argv, cwd=root).strip()

    def attempts(self) -> list[AttemptRecord]:
        return read_attempts(self.run)

    def steps(self) -> list[Event]:
        return [event for event in read_events(self.run.events) if event.kind == "step"]

    def newest_step(self, attempt: int = 0) -> int:
        """Of an attempt; 0: of all. 0 where there is none."""
        return max((event.fields["step"] for event in self.steps() if attempt in {0, event.attempt}), default=0)

    def running(self) -> AttemptRecord | None:
        """The newest attempt, where it trains."""
        records = self.attempts()
        newest = records[-1] if records else None
        return newest if newest is not None and newest.outcome is None and self.newest_step(newest.attempt) else None

    def wait(self, what: str, look: Callable[[], T | None], limit_s: float = 0.0, poll_s: float = POLL_S) -> T:
        """Wait for something; a job that waits for its begin time is spared it. Raises SoakError when it is late, or the job is over."""
        end, asked = time.monotonic() + (limit_s or self._limit_s), 0.0
        while not (found := look()):
            if time.monotonic() > end:
                raise SoakError(f"still not: {what}; {self._words()}")
            if time.monotonic() - asked > 3.0:
                asked = time.monotonic()
                self._spare_it_the_wait(what)
            time.sleep(poll_s)
        return found

    def _spare_it_the_wait(self, what: str) -> None:
        shown = self.cluster.job(self.job)
        if shown.get("JobState") == "PENDING" and shown.get("Reason") == "BeginTime":
            self.cluster.run(["scontrol", "update", f"JobId={self.job}", "StartTime=now"], check=False)
        if shown.get("JobState", "") in OVER and not self.run.finished.exists():
            raise SoakError(f"the job is over ({shown.get('JobState') or 'forgotten'}) before {what}; {self._words()}")

    def _words(self) -> str:
        """The last lines of the run's log."""
        log = self.run.slurm_out(self.job)
        return " | ".join(log.read_text(errors="replace").splitlines()[-8:]) if log.exists() else "no log"


def make_root(cluster: Cluster, root: Path, *, steps: int, nodes: str, hang_s: float) -> None:
    """A job file, and byte tokens of some of the standard library's sources."""
    (root / "job.toml").write_text(JOB.format(steps=steps, nodes=nodes, hang_s=hang_s))
    cluster.run([str(SLURMTRAIN), "data", "build", str(Path(json.__file__).parent), "--out", str(root / "data")])
