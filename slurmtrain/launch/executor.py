"""submitit's executor, with our script, our client, and jobs that end when the run ends.

Differs from submitit 1.5's SlurmExecutor: the script is rendered from a template; one task, however many nodes; no srun is
needed to submit; an array keeps class, script and interpreter; sbatch is called through the SlurmClient with a scrubbed
environment; everything that the job needs is on disk before that. The payload comes in as a callable, its one argument is
the run folder, and so the pickle is tiny.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from submitit.core import core, utils
from submitit.slurm import slurm as submitit_slurm

from slurmtrain.atomic import Disk
from slurmtrain.errors import ConfigError
from slurmtrain.launch.job import ClientWatcher, RunJob
from slurmtrain.launch.request import LaunchRequest
from slurmtrain.rundir import RunDir
from slurmtrain.slurm.client import SlurmClient

Payload = Callable[[str], Any]
Script = Callable[[Sequence[str]], str]
"""Renders the batch script; the argument: folders of an array whose members are runs, else empty."""


class SlurmExecutor(submitit_slurm.SlurmExecutor):
    """Submits `payload(run folder)`. `render` gives the batch script of the request."""

    job_class = RunJob  # type: ignore[assignment]  # its constructor takes the watcher too

    def __init__(self, request: LaunchRequest, render: Script, *, client: SlurmClient, disk: Disk) -> None:
        super().__init__(RunDir(Path(request.run)).submit, max_num_timeout=0, python=request.python)
        self._request, self._render, self._client, self._disk = request, render, client, disk
        self._watcher = ClientWatcher(client)

    @classmethod
    def affinity(cls) -> int:
        """Submitting needs sbatch alone, and the client says when that is missing."""
        return 2

    def submit_run(self, payload: Payload) -> list[RunJob]:
        """Submit the run: one job, or the segments of its array. Raises SlurmError, ConfigError, OSError."""
        folders = [self._request.run] * max(1, len(self._request.members))
        return self._submit([utils.DelayedSubmission(payload, folder) for folder in folders])

    def submit_runs(self, payload: Payload, runs: Sequence[RunDir]) -> list[RunJob]:
        """Submit several runs as one array, a member each, all with the directives of this request. Raises as `submit_run`."""
        return self._submit([utils.DelayedSubmission(payload, str(run.path)) for run in runs])

    def _num_tasks(self) -> int:
        return 1

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        raise TypeError(f"{', '.join(kwargs)}: the request says everything, see slurmtrain.launch.request")

    def _internal_process_submissions(self, delayed_submissions: Sequence[utils.DelayedSubmission]) -> list[core.Job[Any]]:
        return [*self._submit(delayed_submissions)]

    def _submit(self, submissions: Sequence[utils.DelayedSubmission]) -> list[RunJob]:
        runs = [RunDir(Path(delayed.args[0])) for delayed in submissions]
        members, array_of_runs = self._members(runs)
        check_array_size(members, self._client, key="slurm.links" if self._request.chain else "slurm.array")
        script = self._write_script([str(run.path) for run in runs] if array_of_runs else [])
        pending = [run.pending_pickle(member) for run, member in zip(runs, members, strict=True)]
        try:
            for path, delayed in zip(pending, submissions, strict=True):
                delayed.dump(path)
            job_id = self._client.submit(script, options=self._options(members if array_of_runs else ()))
        except BaseException:
            for path in pending:
                path.unlink(missing_ok=True)
            raise
        number, _, self._watcher.cluster = job_id.partition(";")
        jobs = [self._job(run, number if member is None else f"{number}_{member}") for run, member in zip(runs, members, strict=True)]
        for job, path in zip(jobs, pending, strict=True):
            job.paths.move_temporary_file(path, "submitted_pickle")
        return jobs

    def _members(self, runs: Sequence[RunDir]) -> tuple[tuple[int | None, ...], bool]:
        """Task id of each submission (None: no array), and whether the members are runs of their own."""
        if self._request.members and len(runs) == len(self._request.members):
            return self._request.members, False
        if self._request.members:
            raise ConfigError("an array of segments belongs to one run, and cannot hold several", key="slurm.array")
        return ((None,), False) if len(runs) == 1 else (tuple(range(len(runs))), True)

    def _write_script(self, folders: Sequence[str]) -> Path:
        run = RunDir(self.folder.parent)
        path = run.array_script if folders else run.script
        self._disk.write(path, self._render(folders).encode())
        return path

    def _options(self, members: Sequence[int | None]) -> tuple[str, ...]:
        if not members:
            return self._request.sbatch_options
        return (f"--array={members[0]}-{members[-1]}", f"--output={self.folder / 'slurm-%A_%a.out'}")

    def _job(self, run: RunDir, job_id: str) -> RunJob:
        return RunJob(run.submit, job_id, (0,), watcher=self._watcher)


def check_array_size(members: Sequence[int | None], client: SlurmClient, *, key: str = "slurm.array") -> None:
    """Refuse an array that this cluster cannot hold. Raises ConfigError with both numbers."""
    last = members[-1]
    if last is None:
        return
    limit = client.config_value("MaxArraySize")
    if limit is not None and limit.isdigit() and last >= int(limit):
        problem = f"the last member is {last}, and this cluster's MaxArraySize of {limit} allows numbers to {int(limit) - 1}: use fewer"
        raise ConfigError(problem, key=key)
