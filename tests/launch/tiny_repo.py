"""A user's repository whose code stands in for slurmtrain's supervisor, so that real batch jobs take a second and no torch.

The run's code/ comes first in PYTHONPATH, and so the job imports this `slurmtrain.resilience`. It writes `seen/JOB.R.json` into the
run (R: restart count) with its environment and how it was started, waits while `hold` is there, requeues itself once where
`requeue-once` is there, and returns, or writes into submit/exit_code, what `end-with` holds.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from slurmtrain.data.build import build
from slurmtrain.rundir import RunDir
from tests.config.bad_files import GOOD_JOB

PAYLOAD = """
import json, os, subprocess, sys, time
from pathlib import Path

def run(run_path):
    folder = Path(run_path)
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    job = f"{array}_{task}" if array else os.environ["SLURM_JOB_ID"]
    restarts = os.environ.get("SLURM_RESTART_COUNT", "0")
    seen = folder / "seen"
    seen.mkdir(exist_ok=True)
    record = {"t": time.time(), "env": dict(os.environ), "by": sys.argv[0], "restarts": restarts, "cwd": os.getcwd()}
    (seen / f"{job}.{restarts}.tmp").write_text(json.dumps(record))
    os.rename(seen / f"{job}.{restarts}.tmp", seen / f"{job}.{restarts}.json")
    print(f"job {job} restart {restarts}", flush=True)
    while (folder / "hold").exists():
        time.sleep(0.05)
    if (folder / "requeue-once").exists() and restarts == "0":
        subprocess.run(["scontrol", "requeue", job], check=True)
        time.sleep(60)
    code = int((folder / "end-with").read_text()) if (folder / "end-with").exists() else 0
    (folder / "submit/exit_code").write_text(f"{code}\\n")
    return {"job": job, "restarts": restarts, "code": code, "ended": time.time()}
"""


def make_repo(folder: Path, *, environment: str = "") -> Path:
    """The repository, with a job file for four ranks of a node; gives back the job file."""
    package = folder / "slurmtrain/resilience"
    package.mkdir(parents=True)
    (folder / "slurmtrain/__init__.py").write_text('__version__ = "stub"\n')
    (package / "__init__.py").write_text("")
    (package / "payload.py").write_text(PAYLOAD)
    (package / "__main__.py").write_text("import sys\nfrom slurmtrain.resilience.payload import run\nsys.exit(run(sys.argv[1])['code'])\n")
    (folder / "text.py").write_text("# a few words of text for the tokens\n" * 10)
    build([folder / "text.py"], folder / "tokens")
    job_file = folder / "tiny.toml"
    job_file.write_text(f"{GOOD_JOB.replace('nodes = 2', 'nodes = 1')}\n[environment]\n{environment}\n")
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", "-C", str(folder), *words], check=True, env=env)
    return job_file


def seen(run: RunDir) -> dict[str, dict[str, Any]]:
    """What the stand-ins of a run wrote, by job and restart count."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((run.path / "seen").glob("*.json"))}
