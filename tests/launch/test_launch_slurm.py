"""The executor on a real cluster without accounting: results through requeues, arrays of runs, many quick starts."""

from __future__ import annotations

import sys

import pytest

from slurmtrain.atomic import SystemDisk
from slurmtrain.clock import SystemClock
from slurmtrain.launch.executor import SlurmExecutor
from slurmtrain.launch.job import RunJob
from slurmtrain.launch.render import render
from slurmtrain.rundir import RunDir
from slurmtrain.shell import SystemShell
from slurmtrain.slurm.cli_client import CliSlurm
from tests.launch.samples import job, request, site, templates

pytestmark = pytest.mark.slurm

SITE = site(slurm={"exclusive": False, "stop_notice_s": 60}, node={"gpus": 4, "cpus_per_gpu": 1})


def make_payload():
    """A function that cloudpickle takes by value: the job has no tests to import it from."""

    def payload(run_path):
        import os
        import subprocess
        import time
        from pathlib import Path

        array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
        job_id = f"{array}_{task}" if array else os.environ["SLURM_JOB_ID"]
        restarts = os.environ.get("SLURM_RESTART_COUNT", "0")
        print(f"restart {restarts}", flush=True)
        if (Path(run_path) / "requeue-once").exists() and restarts == "0":
            subprocess.run(["scontrol", "requeue", job_id], check=True)
            time.sleep(60)
        return {"run": run_path, "job": job_id, "restarts": restarts, "tasks": os.environ["SLURM_PROCID"]}

    return payload


@pytest.fixture
def submitter(cluster, tmp_path, monkeypatch):
    for key, value in cluster.environ.items():
        monkeypatch.setenv(key, value)
    client = CliSlurm(SystemShell(), SystemClock(), cluster.environ, cache_dir=tmp_path / "cache")

    def submit(*names: str) -> list[RunJob]:
        runs = [RunDir(tmp_path / name) for name in names]
        for run in runs:
            run.create()
            run.job_json.write_text("{}")
        made = request(job(name=runs[0].name, nodes=1, gpus_per_node=2), SITE, run=runs[0].path, python=sys.executable)
        executor = SlurmExecutor(made, lambda folders: render(made, templates(), runs=folders), client=client, disk=SystemDisk())
        return executor.submit_runs(make_payload(), runs) if len(runs) > 1 else executor.submit_run(make_payload())

    return submit


def test_the_result_is_that_of_the_last_start_of_a_requeued_job(submitter, tmp_path, cluster):
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama/requeue-once").touch()
    (handle,) = submitter("llama")
    cluster.wait(f"restart of job {handle.job_id}", lambda: (handle.stdout() or "").count("restart") == 2, timeout_s=90)
    assert handle.result()["restarts"] == "1"
    assert handle.stdout().splitlines()[0] == "restart 0"


def test_two_runs_as_one_array_keep_class_script_and_interpreter(submitter, tmp_path):
    handles = submitter("one", "the second")
    assert {type(handle) for handle in handles} == {RunJob}
    results = [handle.result() for handle in handles]
    assert [result["run"] for result in results] == [str(tmp_path / "one"), str(tmp_path / "the second")]
    assert [result["job"] for result in results] == [handle.job_id for handle in handles]
    assert [handle.stdout() for handle in handles] == ["restart 0\n"] * 2
    assert handles[1].paths.folder == tmp_path / "the second/submit"


def test_many_quick_starts_all_have_a_log_and_a_result(submitter):
    """C16: everything is on disk before sbatch is called."""
    handles = [submitter(f"quick-{n}")[0] for n in range(10)]
    for handle in handles:
        assert handle.result()["job"] == handle.job_id
        assert handle.stdout() == "restart 0\n"
