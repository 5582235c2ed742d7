"""Run folders for the supervisor's tests: resolved files of a small job, and what a tiny trainer shall do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from slurmtrain.atomic import SystemDisk
from slurmtrain.config.job import JobConfig
from slurmtrain.config.site import SiteConfig
from slurmtrain.config.stored import write_models
from slurmtrain.fabric.plan import build_plan
from slurmtrain.rundir import RunDir

TINY = Path(__file__).with_name("tiny.py")
MODEL = {"layers": 2, "hidden": 16, "heads": 2, "kv_heads": 2, "ffn": 32, "vocab": 64}


def job_of(name: str, *, nodes: int, gpus: int, steps: int, recovery: Any = None, **slurm: Any) -> JobConfig:
    return JobConfig.model_validate(
        {
            "run": {"name": name},
            "model": MODEL,
            "data": {"path": "/nowhere"},
            "training": {"steps": steps, "sequence_length": 8, "global_batch": nodes * gpus * 2},
            "recovery": recovery or {},
            "preflight": "off",
            "slurm": {"nodes": nodes, "gpus_per_node": gpus, **slurm},
        }
    )


def site_of(launcher: str, gpus: int, **changes: Any) -> SiteConfig:
    """A site whose times are those of a test."""
    timeouts = {"collective_timeout_s": 60, "start_timeout_s": 60, "node_check_timeout_s": 60, "exit_grace_s": 3}
    base = {
        "name": "test",
        "launcher": launcher,
        "device": "cpu",
        "slurm": {"mpi": "pmi2", "gpus_option": ""},
        "node": {"gpus": gpus},
        "timeouts": timeouts,
    }
    return SiteConfig.model_validate({**base, **changes})


def make_run(
    path: Path,
    *,
    launcher: str = "mpiexec",
    nodes: int = 2,
    gpus: int = 2,
    behaviour: dict[str, Any] | None = None,
    site: Any = None,
    recovery: Any = None,
    **slurm: Any,
) -> RunDir:
    """A run folder that is ready for a supervisor. `recovery`: keys of the job's [recovery]."""
    run = RunDir(path)
    run.create()
    wanted = {"steps": 20, "step_s": 0.05, "save_every": 5, **(behaviour or {})}
    job, where = (
        job_of(path.name, nodes=nodes, gpus=gpus, steps=wanted["steps"], recovery=recovery, **slurm),
        site or site_of(launcher, gpus),
    )
    write_models(run, job, where, build_plan(job, where), SystemDisk())
    (path / "behaviour.json").write_text(json.dumps(wanted))
    return run


def tiny_command(run: RunDir) -> tuple[str, ...]:
    return (sys.executable, str(TINY), str(run.path))
