"""What a batch job runs: submitit's payload, and the same for `python -m slurmtrain.resilience RUN`."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurmtrain.atomic import SystemDisk
from slurmtrain.errors import EXIT_FAULT, SlurmtrainError, one_line
from slurmtrain.resilience.supervisor import Summary, supervise
from slurmtrain.resilience.verdict import write_exit_code
from slurmtrain.rundir import RunDir


def run(run_path: str) -> dict[str, Any]:
    """Supervise this job's share of the run; the summary. Never raises, never exits: the code is in it and in submit/exit_code."""
    folder = RunDir(Path(run_path))
    remove_stale_result(os.environ)
    try:
        return supervise(folder, os.environ).to_dict()
    except SlurmtrainError as error:
        return _failed(folder, EXIT_FAULT, str(error))
    except Exception as error:  # noqa: BLE001 whatever it is, the job must end with a code and a summary
        traceback.print_exc()
        return _failed(folder, EXIT_FAULT, f"the supervisor failed: {type(error).__name__}: {error}")


def _failed(folder: RunDir, code: int, cause: str) -> dict[str, Any]:
    sys.stderr.write(one_line(cause, 1000) + "\n")
    try:
        write_exit_code(folder, SystemDisk(), code)
    except OSError as error:
        sys.stderr.write(f"{folder.exit_code}: {error.strerror}\n")
    return Summary(str(folder.path), code, "failed", cause).to_dict()


def remove_stale_result(environ: Mapping[str, str]) -> None:
    """Take away submitit's result of an earlier start of this job: a requeued run would look finished while it runs."""
    folder, job = environ.get("SUBMITIT_FOLDER"), environ.get("SLURM_JOB_ID")
    if not folder or not job:
        return
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    number = f"{array}_{task}" if array and task else job
    for path in Path(folder.replace("%j", number)).glob(f"{number}_*_result.pkl"):
        path.unlink(missing_ok=True)
