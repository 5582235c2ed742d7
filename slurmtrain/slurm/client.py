"""The SlurmClient Protocol: all that slurmtrain asks of Slurm. `cli_client.py` is the real one.

Job ids are text: `12`, an array member `12_3`, and `12;cluster` for a job on another cluster than this one's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from slurmtrain.slurm.types import JobInfo, NodeInfo, NodePlace, StepInfo


class SlurmClient(Protocol):
    """Slurm's answers as values. Every method may raise SlurmError (refused) or SlurmUnavailableError (no answer)."""

    def submit(self, script: Path, *, options: Sequence[str] = ()) -> str:
        """`sbatch --parsable OPTIONS SCRIPT` with the submit environment scrubbed; the job id (`12;cluster` on another cluster).

        Tried again, a bounded number of times, only where sbatch surely did not accept the job.
        """

    def job(self, job_id: str) -> JobInfo | None:
        """One job by `scontrol show job -o` (an array member as A_a); None when slurmctld no longer knows it."""

    def my_jobs(self, *, max_age_s: float = 10.0) -> tuple[float, list[JobInfo]]:
        """Jobs of this user by one squeue, from a cache shared between processes; (age of the answer in seconds, jobs)."""

    def finished_job(self, job_id: str) -> JobInfo | None:
        """What `sacct --duplicates` remembers (last record); None without accounting or record."""

    def nodes(self, names: Sequence[str]) -> list[NodeInfo]:
        """`scontrol show node -o`, in the order of `names`; a node that Slurm does not know is left out."""

    def places(self, names: Sequence[str]) -> list[NodePlace]:
        """`scontrol show topology`; places without leaf or block where the cluster has no topology."""

    def config_value(self, key: str) -> str | None:
        """A value of `scontrol show config` as it is printed (`ClusterName`: "lux"; `SlurmdTimeout`: "300 sec"); read once."""

    def steps(self, job_id: str) -> list[StepInfo]:
        """Steps of a job that run or are completing, by `squeue --steps`."""

    def requeue(self, job_id: str) -> None:
        """`scontrol requeue`. Kills the job that calls it."""

    def start_in(self, job_id: str, delay_s: float) -> None:
        """`scontrol update StartTime=now+N`: when a job that waits for its begin time may start. Nothing happens where it runs."""

    def avoid(self, job_id: str, nodes: Sequence[str]) -> None:
        """`scontrol update ExcNodeList=`: where a job that waits shall not start; replaces what stood there. Refused once it runs."""

    def partition_nodes(self, partition: str) -> list[NodeInfo]:
        """`scontrol show partition`, and all its nodes; none where Slurm does not know the partition."""

    def cancel(self, job_id: str, *, step: str | None = None, signal: str | None = None, batch: bool = False) -> None:
        """`scancel`: the job, one step of it, or a signal to its batch shell. Nothing happens where it has ended already."""
