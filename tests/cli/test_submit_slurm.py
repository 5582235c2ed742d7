"""`slurmtrain submit` on a real cluster: directives, environment, scripts by hand, arrays; the supervisor is a stand-in."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.history import read_acts
from tests.fixtures_slurm import SlurmCluster
from tests.launch.tiny_repo import make_repo, seen

pytestmark = pytest.mark.slurm

POISON = {
    "SLURM_NTASKS": "2",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_JOB_ID": "99999",
    "SLURM_CPU_BIND": "none",
    "SLURM_ARRAY_JOB_ID": "99998",
    "SLURM_ARRAY_TASK_ID": "3",
    "SBATCH_PARTITION": "nowhere",
    "SBATCH_EXPORT": "NONE",
    "SBATCH_ARRAY_INX": "1-3",
    "SBATCH_NO_REQUEUE": "1",
    "SRUN_CPUS_PER_TASK": "7",
}
VALUES = {"A": "it's $HOME", "B": "A=1,2", "C": "x|y", "D": "64(x2)", "E": 'say "hi" `date` \\ '}


@dataclass
class Bench:
    """A cluster, a job file, and a root with a nasty name."""

    cluster: SlurmCluster
    job_file: Path
    root: Path

    def slurmtrain(self, *words: str | Path, env: dict[str, str] | None = None, check: bool = True):
        return self.cluster.run(
            [sys.executable, "-m", "slurmtrain.cli.main", *words], cwd=self.root.parent, env=env, check=check, timeout_s=120
        )

    def submit(self, *words: str | Path, env: dict[str, str] | None = None) -> str:
        said = self.slurmtrain("submit", self.job_file, "--root", self.root, *words, env=env).stdout
        return re.fullmatch(r"Submitted batch job (\d+)\n", said)[1]

    def run(self, name: str) -> RunDir:
        return RunDir(self.root / name)

    def over(self, job_id: str) -> dict[str, str]:
        return self.cluster.wait_job(job_id, "COMPLETED", "FAILED", "CANCELLED", timeout_s=90)


@pytest.fixture
def bench(cluster, tmp_path):
    root = tmp_path / "it's $HOME, A=1 x|y"
    root.mkdir()
    return Bench(cluster, make_repo(tmp_path / "repo", environment="\n".join(f"{k} = '''{v}'''" for k, v in VALUES.items())), root)


def test_directives_reach_slurm(bench):
    job_id = bench.submit("-N", "2-3", "-J", "held", "-t", "0:45:00", "-d", "singleton", "-x", "n6", "--", "--hold", "--mail-user", "a b")
    shown = bench.cluster.run(["scontrol", "show", "job", "-o", job_id]).stdout
    bench.cluster.run(["scancel", job_id])
    for words in (
        "JobName=held ",
        "NumNodes=3",
        "NtasksPerN:B:S:C=4:",
        "CPUs/Task=1",
        "TresPerNode=gres:gpu:4",
        "MinMemoryNode=0",
        "OverSubscribe=NO",
        "TimeLimit=00:45:00",
        "Requeue=1",
        "ExcNodeList=n6",
        "Dependency=singleton",
        "JobHeldUser",
        f"Comment={bench.run('held').path} ",
        f"StdOut={bench.root}/held/slurm-{job_id}.out",
        f"Command={bench.run('held').script}",
    ):
        assert words in shown, words


def test_a_poisoned_environment_changes_nothing_and_values_arrive_whole(bench):
    job_id = bench.submit("-J", "poisoned", "--set", "slurm.nodes=1", env=POISON)
    assert bench.over(job_id)["JobState"] == "COMPLETED"
    run = bench.run("poisoned")
    assert set(seen(run)) == {f"{job_id}.0"}
    env = seen(run)[f"{job_id}.0"]["env"]
    assert {key: env[key] for key in VALUES} == VALUES
    assert env["SLURM_JOB_ID"] == job_id
    assert env["SLURM_JOB_PARTITION"] == "main"
    assert env["SLURM_NTASKS"] == "4"
    assert not {"SLURM_ARRAY_JOB_ID", "SBATCH_PARTITION", "SRUN_CPUS_PER_TASK", "SLURM_CPU_BIND"} & set(env)
    assert env["SLURM_CONF"] == bench.cluster.environ["SLURM_CONF"]
    assert seen(run)[f"{job_id}.0"]["cwd"] == str(run.code)
    assert seen(run)[f"{job_id}.0"]["by"].endswith("_submit.py")
    assert run.slurm_out(job_id).read_text() == f"job {job_id} restart 0\n"


def test_a_dry_runs_script_by_hand_and_the_runs_own_script_twice_more(bench, tmp_path):
    """C12: the script belongs to the run and not to a job id."""
    words = ["submit", bench.job_file, "--root", bench.root, "-J", "by-hand"]
    script = tmp_path / "by hand.sbatch"
    script.write_text(bench.slurmtrain(*words, "--dry-run").stdout)
    assert list(bench.root.iterdir()) == []
    first = bench.cluster.sbatch(script, cwd=tmp_path)
    assert bench.over(first)["JobState"] == "COMPLETED"
    run = bench.run("by-hand")
    assert run.slurm_out(first).read_text() == f"job {first} restart 0\n"
    assert run.script.read_text() == script.read_text()
    again = [bench.cluster.sbatch(run.script, cwd=tmp_path) for _ in range(2)]
    for job_id in again:
        assert bench.over(job_id)["JobState"] == "COMPLETED"
    assert set(seen(run)) == {f"{job_id}.0" for job_id in (first, *again)}
    assert {record["by"].split("/")[-2] for record in seen(run).values()} == {"resilience"}


def test_a_script_by_hand_whose_job_file_changed_fails_with_the_reason(bench, tmp_path):
    script = tmp_path / "stale.sbatch"
    script.write_text(bench.slurmtrain("submit", bench.job_file, "--root", bench.root, "--dry-run").stdout)
    bench.job_file.write_text(bench.job_file.read_text().replace("steps = 100", "steps = 7"))
    job_id = bench.cluster.sbatch(script, cwd=tmp_path)
    assert bench.over(job_id)["JobState"] == "FAILED"
    assert "not as when this script was made" in (tmp_path / f"slurm-{job_id}.out").read_text()
    assert list(bench.root.iterdir()) == []


def test_segments_run_one_at_a_time_each_with_its_pickle_and_log(bench):
    job_id = bench.submit("-J", "segments", "-a", "1-3%1")
    run = bench.run("segments")
    members = [f"{job_id}_{n}" for n in (1, 2, 3)]
    bench.cluster.wait("three segments", lambda: len(seen(run)) == 3, timeout_s=90)
    for member in members:
        bench.over(member)
    records = [seen(run)[f"{member}.0"] for member in members]
    assert [record["t"] for record in records] == sorted(record["t"] for record in records)
    assert {record["by"].split("/")[-1] for record in records} == {"_submit.py"}
    assert [run.slurm_out(member).read_text() for member in members] == [f"job {member} restart 0\n" for member in members]
    assert read_acts(run)[-1].job_id == job_id


def test_the_code_that_the_run_says_is_the_jobs(bench):
    job_id = bench.submit("-J", "codes", "--", "--hold")
    (bench.run("codes").path / "end-with").write_text("75")
    bench.cluster.run(["scontrol", "release", job_id])
    shown = bench.over(job_id)
    assert (shown["JobState"], shown["ExitCode"]) == ("FAILED", "75:0")


def test_resume_waits_for_the_job_that_is_alive_and_takes_the_same_folder(bench):
    first = bench.submit("-J", "again", "--", "--hold")
    refused = bench.slurmtrain("submit", bench.job_file, "--root", bench.root, "-J", "again", "--resume", check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"job {first} of run 'again' is PENDING" in refused.stderr
    bench.cluster.run(["scancel", first])
    bench.cluster.wait_job(first, "CANCELLED")
    second = bench.submit("-J", "again", "--resume")
    assert bench.over(second)["JobState"] == "COMPLETED"
    assert [act.job_id for act in read_acts(bench.run("again"))] == [first, second]


def test_a_job_that_slurm_refuses_leaves_nothing(bench):
    refused = bench.slurmtrain("submit", bench.job_file, "--root", bench.root, "-p", "nowhere", check=False)
    assert refused.returncode == 1
    assert "nvalid partition" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert list(bench.root.iterdir()) == []
