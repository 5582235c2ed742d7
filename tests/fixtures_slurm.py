"""A real Slurm cluster for the tests (`tools/devcluster`): 6 nodes x 4 GPUs, fast timings, two leaf switches.

`cluster` lives for the session; `healthy_cluster` hands it to one test and afterwards cancels its jobs and restores its nodes;
`block_cluster` has NVLink blocks of two nodes, which Slurm knows from 23.11 on.
Where Slurm's packages are missing such tests skip with the reason; under CI=true they fail.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.cluster import conf, lifecycle, suites

ROOT = Path(__file__).resolve().parent.parent
DEVCLUSTER = ROOT / "tools/devcluster"
NODES = ("n1", "n2", "n3", "n4", "n5", "n6")
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "BOOT_FAIL", "DEADLINE"}


def clean_environ() -> dict[str, str]:
    """This process's environment without anything of a Slurm that it may run under; the interpreter's programs come first in PATH."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH_", "SRUN_", "SALLOC_"))}
    return {**kept, "PATH": f"{ROOT / '.venv/bin'}:{kept.get('PATH', '')}:/usr/sbin:/sbin", "OMP_NUM_THREADS": "1"}


def devcluster(*args: str, timeout_s: float = 150) -> subprocess.CompletedProcess[str]:
    """Run tools/devcluster to its end."""
    argv = [str(DEVCLUSTER), *args]
    return subprocess.run(argv, env=clean_environ(), capture_output=True, text=True, timeout=timeout_s, check=False)


@dataclass(frozen=True)
class SlurmCluster:
    """A cluster that runs, and how a test speaks to it: `environ` is for any child process."""

    folder: Path
    environ: Mapping[str, str]

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        timeout_s: float = 60,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """A command in the cluster's environment; with `check` a failing one fails the test, with what it printed."""
        args = [str(arg) for arg in argv]
        done = subprocess.run(
            args, env={**self.environ, **(env or {})}, cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if check and done.returncode:
            pytest.fail(f"{' '.join(args)}: exit {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
        return done

    def sbatch(self, *args: str | Path, cwd: Path) -> str:
        """Submit; the job id."""
        return self.run(["sbatch", "--parsable", *args], cwd=cwd).stdout.strip().partition(";")[0]

    def job(self, job: str) -> dict[str, str]:
        """`scontrol show job -o` as a dictionary; empty when Slurm has forgotten the job."""
        shown = self.run(["scontrol", "show", "job", "-o", job], check=False).stdout
        return dict(part.split("=", 1) for part in shown.split() if "=" in part)

    def happens(self, event: Callable[[], object], timeout_s: float, poll_s: float = 0.2) -> bool:
        """Whether something comes true within the limit."""
        deadline = time.monotonic() + timeout_s
        while not event():
            if time.monotonic() > deadline:
                return False
            time.sleep(poll_s)
        return True

    def wait(self, what: str, event: Callable[[], object], timeout_s: float = 60, poll_s: float = 0.2) -> None:
        """Wait until something comes true; fails the test with `what`, the queue and the nodes when it is late."""
        if not self.happens(event, timeout_s, poll_s):
            queue = self.run(["squeue", "-o", "%i %T %r %N"], check=False).stdout
            nodes = self.run(["sinfo", "-N", "-p", "main", "-o", "%N %T %E"], check=False).stdout
            pytest.fail(f"after {timeout_s:.0f} s still not: {what}\n{queue}\n{nodes}")

    def queue(self) -> str:
        """The jobs that Slurm still has to do with, one a line."""
        return self.run(["squeue", "-h", "-o", "%i %T %N"]).stdout.strip()

    def wait_job(self, job: str, *states: str, timeout_s: float = 60) -> dict[str, str]:
        """Wait until the job is in one of the states (none given: until it is over); what Slurm then shows of it."""
        wanted = set(states) or OVER
        self.wait(f"job {job} in {' '.join(sorted(wanted))}", lambda: self.job(job).get("JobState") in wanted, timeout_s)
        return self.job(job)

    def wait_gone(self, job: str, timeout_s: float = 60) -> str:
        """Wait until the job is over, or until Slurm has forgotten it (MinJobAge); its last state, empty when it is forgotten."""
        self.wait(f"the end of job {job}", lambda: self.job(job).get("JobState", "") in OVER | {""}, timeout_s)
        return self.job(job).get("JobState", "")

    def start_requeued(self, job: str, restarts: int = 1) -> None:
        """Wait until the job was requeued so often, and spare it its begin time; it may have begun by itself meanwhile.

        Not within the second in which it was killed: slurmd would take the new start for the one that was ended ("already killed").
        """
        self.wait(f"requeue {restarts} of job {job}", lambda: self.job(job).get("Restarts") == str(restarts), timeout_s=90)
        second = int(time.time())
        self.wait("another second", lambda: time.time() >= second + 2)
        if self.job(job).get("JobState") == "PENDING":
            self.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=False)

    def fail(self, *nodes: str) -> None:
        self._do("fail", *nodes)

    def hang(self, *nodes: str) -> None:
        self._do("hang", *nodes)

    def restore(self, *nodes: str) -> None:
        self._do("restore", *nodes)

    def _do(self, *command: str) -> None:
        done = devcluster(*command, "--dir", str(self.folder))
        if done.returncode:
            pytest.fail(f"devcluster {' '.join(command)}: {done.stderr}")


def missing() -> str:
    """Why no cluster can run here; empty when one can."""
    if os.geteuid() != 0:
        return "a Slurm cluster needs root"
    gone = [p for p in ("slurmctld", "slurmd", "munged", "srun") if shutil.which(p, path="/usr/sbin:/usr/bin:/sbin:/bin") is None]
    return f"no {', '.join(gone)}: run ./tools/devcluster install" if gone else ""


def need_slurm() -> None:
    """Skip where no cluster can run; fail under CI=true."""
    if reason := missing():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


def exports(text: str) -> dict[str, str]:
    """What `devcluster env` exports, as a POSIX shell understands it."""
    before, after = (
        subprocess.run(["sh", "-c", f"{code}\nenv -0"], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True).stdout
        for code in ("", text)
    )
    old = set(before.split("\0"))
    return dict(line.split("=", 1) for line in after.split("\0") if line and line not in old)


def start(folder: Path, *options: str) -> SlurmCluster:
    """Bring a cluster up in the folder."""
    done = devcluster("up", "--dir", str(folder), *options)
    assert done.returncode == 0, done.stderr
    said = devcluster("env", "--dir", str(folder))
    assert said.returncode == 0, said.stderr
    return SlurmCluster(folder, {**clean_environ(), **exports(said.stdout)})


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """The session's cluster."""
    need_slurm()
    folder = tmp_path_factory.mktemp("slurm", numbered=True) / "c"
    try:
        yield start(folder)
    finally:
        devcluster("down", "--dir", str(folder))


def suite_with_blocks() -> list[str]:
    """Options that give a Slurm which knows blocks; skips where there is none."""
    need_slurm()
    if lifecycle.installed_version(None) >= conf.FIRST_WITH_BLOCKS:
        return []
    if not suites.cached("trixie", os.environ).is_dir():
        pytest.skip("this Slurm knows no blocks: run ./tools/devcluster install --suite trixie")
    return ["--suite", "trixie"]


@pytest.fixture(scope="session")
def block_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A second cluster for the session: 6 nodes x 4 GPUs in blocks b1 (n1, n2), b2 (n3, n4), b3 (n5, n6)."""
    options = suite_with_blocks()
    folder = tmp_path_factory.mktemp("block", numbered=True) / "c"
    try:
        yield start(folder, "--topology", "block", *options)
    finally:
        devcluster("down", "--dir", str(folder))


@pytest.fixture
def healthy_cluster(cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """The session's cluster for a test that breaks nodes or leaves jobs behind."""
    yield cluster
    cluster.run(["scancel", "--user=root", "--signal=KILL", "--full"], check=False)
    cluster.run(["scancel", "--user=root"], check=False)
    cluster.restore(*NODES)
    if not cluster.happens(lambda: not cluster.queue(), 15):  # a process that left its step holds the node
        cluster.fail(*NODES)
        cluster.restore(*NODES)
        cluster.wait("an empty queue", lambda: not cluster.queue())
