"""A cluster of the bench's own, and the runs on it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.reader import read_events, steps

ROOT = Path(__file__).resolve().parents[2]
DEVCLUSTER = str(ROOT / "tools" / "devcluster")
SLURMTRAIN = str(Path(sys.executable).with_name("slurmtrain"))
GPUS = 2
JOB = """\
[model]
preset = "tiny"
layers = 2
vocab = 320

[data]
path = "{data}"

[training]
steps = 120
sequence_length = 32
global_batch = 8

[optimizer]
lr = 3e-3
warmup_steps = 5

[checkpoint]
every_steps = 10

[recovery]
backoff_s = 1

[recovery.hang]
step_s = 15
first_step_s = 120

[slurm]
time = "30:00"
"""
SITE = """\
launcher = "srun"
device = "cpu"

[slurm]
mpi = "{mpi}"
gpus_option = ""
exclusive = true

[node]
gpus = {gpus}
cpus_per_gpu = 1
nvlink_domain = "node"

[fabric]
kind = "loopback"
rendezvous_interface = "lo"

[paths]
root = "{folder}/runs"
scratch = "/dev/shm"

[environment.set]
OMP_NUM_THREADS = "1"

[timeouts]
collective_timeout_s = 60
start_timeout_s = 240
node_check_timeout_s = 120
exit_grace_s = 4
supervisor_silence_s = 20
"""


@dataclass
class Field:
    """Where the drills are done. `folder`: of job, site, data and runs; `cluster`: the devcluster's."""

    folder: Path
    nodes: int
    timings: str
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when somebody wants the end: drills are let go."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def cluster(self) -> Path:
        return self.folder / "c"

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @contextmanager
    def up(self) -> Iterator[None]:
        """With its cluster, whose environment becomes this process's; nothing of it is left afterwards."""
        try:
            self.devcluster("up", "--nodes", str(self.nodes), "--gpus", str(GPUS), "--timings", self.timings)
            for line in self.devcluster("env").splitlines():
                word = shlex.split(line)
                if word[:1] == ["export"]:
                    name, _, value = word[1].partition("=")
                    os.environ[name] = value
            self._prepare()
            yield
        finally:
            subprocess.run([DEVCLUSTER, "down", "--dir", str(self.cluster)], check=False, capture_output=True)

    def devcluster(self, command: str, *words: str) -> str:
        """Raises RuntimeError."""
        with self._lock:
            done = subprocess.run([DEVCLUSTER, command, "--dir", str(self.cluster), *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"devcluster {command} {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def _prepare(self) -> None:
        self.runs.mkdir()
        self.said([SLURMTRAIN, "data", "build", str(Path(json.__file__).parent), "--out", str(self.folder / "data")])
        (self.folder / "job.toml").write_text(JOB.replace("{data}", str(self.folder / "data")))
        for name, mpi, gpus in (("bench", "pmi2", 1), ("nompi", "none", 1), ("two", "pmi2", GPUS)):
            text = SITE.replace("{mpi}", mpi).replace("{gpus}", str(gpus)).replace("{folder}", str(self.folder))
            (self.folder / f"{name}.toml").write_text(text)

    def said(self, argv: list[str], *, check: bool = True) -> str:
        """A command's output. Raises RuntimeError."""
        done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=self.folder)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(argv[:3])} ..: {done.stderr.strip()[-400:]}")
        return done.stdout

    def job(self, job_id: str) -> dict[str, str]:
        shown = self.said(["scontrol", "show", "job", "-o", job_id], check=False)
        return dict(part.split("=", 1) for part in shown.split() if "=" in part)

    def spare_begin_time(self, job_id: str) -> None:
        """A requeued job need not wait for its begin time."""
        shown = self.job(job_id)
        if shown.get("JobState") == "PENDING" and shown.get("Reason") == "BeginTime" and shown.get("Restarts", "0") != "0":
            self.said(["scontrol", "update", f"JobId={job_id}", "StartTime=now"], check=False)


def reached(run: RunDir) -> int:
    """The highest step so far."""
    return max(steps(read_events(run.events)), default=0)


def job_of(run: RunDir) -> str:
    """The run's job; empty before there is one."""
    with suppress(OSError):
        for line in reversed(run.history_jsonl.read_text().splitlines()):
            with suppress(ValueError):
                if job := json.loads(line).get("job_id"):
                    return str(job)
    return ""


def processes_of(run: RunDir) -> list[int]:
    """Processes that the run's environment marks."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get("SLURMTRAIN_RUN") == str(run.path) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def happens(event: Callable[[], Any], limit_s: float, poll_s: float = 0.2) -> bool:
    """Whether something comes true within the limit."""
    end = time.monotonic() + limit_s
    while not event():
        if time.monotonic() > end:
            return False
        time.sleep(poll_s)
    return True
