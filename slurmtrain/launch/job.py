"""The handle of a submitted job: submitit's, but told by the SlurmClient (no sacct) and patient with jobs that will run again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from submitit.core import utils
from submitit.slurm.slurm import SlurmInfoWatcher, SlurmJob

from slurmtrain.errors import SlurmError
from slurmtrain.rundir import RunDir
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.slurm.types import ENDED, JobInfo

AGAIN = frozenset({"PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "REVOKED"})
"""States that a requeued job passes through; when it really is over, Slurm forgets it."""
GONE = "GONE"
"""Slurm no longer knows the job, and nobody has kept a record."""


class ClientWatcher(SlurmInfoWatcher):
    """States of jobs by `SlurmClient.job`, at most every `delay_s` seconds per job."""

    def __init__(self, client: SlurmClient, delay_s: int = 30) -> None:
        super().__init__(delay_s)
        self.client, self.cluster = client, ""
        self._jobs: dict[str, JobInfo | None] = {}

    def update(self) -> None:
        """Ask again about all jobs that are not over; what cannot be asked now stays as it was."""
        self._num_calls += 1
        for job_id in sorted(self._registered - self._finished):
            try:
                info = self.client.job(self.full_id(job_id))
                self._jobs[job_id] = info or self.client.finished_job(self.full_id(job_id))
            except SlurmError:
                continue
            if info is None or self.is_done(job_id, mode="cache"):
                self._finished.add(job_id)
        self._last_status_check = time.time()

    def full_id(self, job_id: str) -> str:
        """As the client takes it: with the cluster's name where that is another one."""
        return f"{job_id};{self.cluster}" if self.cluster else job_id

    def job(self, job_id: str, mode: str = "standard") -> JobInfo | None:
        """What is known of a job; None when Slurm no longer knows it, or was never asked."""
        self.get_info(job_id, mode)
        return self._jobs.get(job_id)

    def get_info(self, job_id: str, mode: str = "standard") -> dict[str, str]:
        if job_id not in self._registered:
            self.register_job(job_id)
        self.update_if_long_enough(mode)
        info = self._jobs.get(job_id)
        return {"JobID": job_id, "State": info.state, "NodeList": ",".join(info.nodes)} if info else {}

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        state = self.get_info(job_id, mode).get("State")
        return state or (GONE if job_id in self._finished else "UNKNOWN")

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        state = self.get_state(job_id, mode)
        return state == GONE or job_id in self._finished or (state in ENDED and state not in AGAIN)


class RunPaths(utils.JobPaths):
    """submitit's files are in `submit/` of a run, and so the run's own log one folder up; stderr goes there too."""

    @property
    def stdout(self) -> Path:
        return RunDir(self.folder.parent).slurm_out(str(self.job_id))

    @property
    def stderr(self) -> Path:
        return self.folder / "no-separate-stderr"


class RunJob(SlurmJob[Any]):
    """A job, or an array member, of one run; `result()` waits until the run's supervisor has returned its summary."""

    def __init__(self, folder: Path | str, job_id: str, tasks: Sequence[int] = (0,), *, watcher: ClientWatcher) -> None:
        self.watcher = watcher
        self._client_watcher = watcher
        super().__init__(folder, job_id, tasks)
        self._paths = RunPaths(folder, job_id=job_id, task_id=self.task_id)

    def cancel(self, check: bool = True) -> None:  # noqa: FBT001, FBT002 submitit's signature
        """`scancel`. Raises SlurmError, with `check` alone."""
        try:
            self._client_watcher.client.cancel(self._client_watcher.full_id(self.job_id))
        except SlurmError:
            if check:
                raise

    def done(self, force_check: bool = False) -> bool:  # noqa: FBT001, FBT002 submitit's signature
        """Whether there is a result of the last start, or the job is over without one."""
        try:
            written = self.paths.result_pickle.stat().st_mtime
        except OSError:
            return bool(self.watcher.is_done(self.job_id, mode="force" if force_check else "standard"))
        info = self._client_watcher.job(self.job_id, mode="force")
        return info is None or not _runs_again(info, written)


def _runs_again(info: JobInfo, written: float) -> bool:
    """Whether a result of that time is of an earlier start of the job."""
    if info.state == "PENDING" or info.state in AGAIN - {"REVOKED"}:
        return True
    return not info.ended and info.start_time is not None and written < info.start_time - 1
