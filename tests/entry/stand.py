"""Run folders of scripts, and a rank of one as the launcher starts it, without a launcher and a supervisor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurmtrain.atomic import SystemDisk
from slurmtrain.config.job import JobConfig
from slurmtrain.config.stored import write_models
from slurmtrain.fabric.plan import build_plan
from slurmtrain.resilience.records import AttemptRecord, write_attempt
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.events import Event
from slurmtrain.telemetry.exitfile import ExitRecord, read_exit_records
from slurmtrain.telemetry.reader import read_events
from tests.mpi_world import clean_environment
from tests.resilience.runs import site_of

LIMIT_S = 60


def script_run(path: Path, script: str, *, nodes: int = 1, gpus: int = 1, words: tuple[str, ...] = (), **entry: Any) -> RunDir:
    """A run whose script is this text; `entry`: more keys of [entry]."""
    run = RunDir(path)
    run.create()
    (run.code / "script.py").write_text(textwrap.dedent(script))
    wanted = {"command": ["python", "script.py", *words], **entry}
    job = JobConfig.model_validate(
        {"run": {"name": path.name}, "entry": wanted, "slurm": {"nodes": nodes, "gpus_per_node": gpus}, "recovery": {"backoff_s": 0.0}}
    )
    site = site_of("mpiexec", gpus)
    write_models(run, job, site, build_plan(job, site), SystemDisk())
    return run


def begin(run: RunDir, attempt: int = 1, *, nodes: int = 1, gpus: int = 1) -> None:
    """What the supervisor leaves before it starts the ranks."""
    run.attempt(attempt).create()
    names = tuple(f"local-{index + 1}" for index in range(nodes))
    write_attempt(run, SystemDisk(), AttemptRecord(attempt, "", 0, time.time(), names, (), gpus, nodes * gpus))


def start_rank(run: RunDir, rank: int = 0, attempt: int = 1, *, gpus: int = 1, **more: str) -> subprocess.Popen[str]:
    node = f"local-{rank // gpus + 1}"
    env = {"SLURMTRAIN_ATTEMPT": str(attempt), "SLURMTRAIN_NODE": node, "PMI_RANK": str(rank), **more}
    argv = [sys.executable, "-m", "slurmtrain.entry.rank", str(run.path)]
    cwd = run.code
    return subprocess.Popen(argv, env=clean_environment(env), cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, _ = process.communicate(timeout=LIMIT_S)
    return process.returncode, out


def run_rank(run: RunDir, attempt: int = 1, **more: str) -> tuple[int, str]:
    """One rank alone, from its start to its end."""
    begin(run, attempt)
    return finish(start_rank(run, attempt=attempt, **more))


def record_of(run: RunDir, attempt: int = 1, rank: int = 0) -> ExitRecord:
    return read_exit_records(run.attempt(attempt).exit_dir)[rank]


def events(run: RunDir, kind: str, attempt: int | None = None) -> list[Event]:
    return [one for one in read_events(run.events) if one.kind == kind and attempt in {None, one.attempt}]


def until(what: str, true: Callable[[], object]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < limit, f"still not: {what}"
        time.sleep(0.02)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def said(run: RunDir, name: str) -> Any:
    """JSON that a script has left in its code folder."""
    return json.loads((run.code / name).read_text())


def pid_in(run: RunDir, name: str = "pid") -> int:
    """A process id that a script has written."""
    path = run.code / name
    until(f"{name} is there", lambda: path.is_file() and path.read_text().strip())
    return int(path.read_text())


def send(process: subprocess.Popen[str], number: int) -> None:
    os.kill(process.pid, number)
