"""RUN is a name, a path or a job id, and the root is found without being told."""

from __future__ import annotations

import json

import pytest

from slurmtrain.cli.runs import all_runs, find_root, find_run, jobs_of
from slurmtrain.errors import ConfigError, RunNotFoundError
from slurmtrain.rundir import RunDir
from slurmtrain.slurm.types import JobInfo
from slurmtrain.telemetry.history import add_act
from tests.fakes.clock import FakeClock
from tests.fakes.disk import FakeDisk
from tests.fakes.slurm import FakeSlurm


@pytest.fixture
def slurm():
    return FakeSlurm(FakeClock())


@pytest.fixture
def root(tmp_path):
    for name in ("one", "two", "12"):
        run = RunDir(tmp_path / "runs" / name)
        run.create()
        run.job_json.write_text("{}")
    (tmp_path / "runs/not-a-run").mkdir()
    (tmp_path / "runs/.one.77.tmp").mkdir()
    (tmp_path / "runs/.one.77.tmp/job.json").write_text("{}")
    return tmp_path / "runs"


def test_by_name_and_by_path(root, slurm):
    assert find_run("one", root, slurm).path == root / "one"
    assert find_run(str(root / "two"), root / "elsewhere", slurm).path == root / "two"


def test_by_path_from_where_we_are(root, slurm, monkeypatch):
    monkeypatch.chdir(root / "two")
    assert find_run(".", root, slurm).path == root / "two"
    assert find_run("../one", root, slurm).path == root / "one"


def test_a_name_of_digits_is_a_name_first(root, slurm):
    assert find_run("12", root, slurm).path == root / "12"


def test_by_a_job_that_slurm_knows_wherever_its_run_is(root, slurm, tmp_path):
    slurm.put(JobInfo("40", "one", "RUNNING", comment=str(root / "one")))
    assert find_run("40", tmp_path, slurm).path == root / "one"


def test_by_a_job_that_the_run_remembers(root, slurm):
    add_act(RunDir(root / "two"), FakeDisk(), 1.0, "submit", job_id="41")
    (root / "one/owner.json").write_text(json.dumps({"v": 1, "job_id": "55_3"}))
    assert find_run("41", root, slurm).path == root / "two"
    assert find_run("41_2", root, slurm).path == root / "two"
    assert find_run("55", root, slurm).path == root / "one"
    slurm.down = True
    assert find_run("41", root, slurm).path == root / "two"


def test_jobs_of_a_run_are_told_once_and_damage_is_passed_over(root):
    run = RunDir(root / "one")
    for job_id in ("3", "", "4", "3"):
        add_act(run, FakeDisk(), 1.0, "x", job_id=job_id)
    run.owner_json.write_text("{")
    assert jobs_of(run) == ["3", "4"]


def test_what_is_not_there_names_what_is(root, slurm, tmp_path):
    with pytest.raises(RunNotFoundError, match=r"no run 'tow' under .*: there are 12, one, two"):
        find_run("tow", root, slurm)
    with pytest.raises(RunNotFoundError, match="belongs to job 99"):
        find_run("99", root, slurm)
    with pytest.raises(RunNotFoundError, match="there are none"):
        find_run("x", tmp_path / "nowhere", slurm)


def test_all_runs_are_runs(root, tmp_path):
    assert [run.name for run in all_runs(root)] == ["12", "one", "two"]
    assert all_runs(tmp_path / "nowhere") == []


def test_the_root_of_option_variable_cluster_and_here(tmp_path, slurm, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_root(tmp_path / "a", {"SLURMTRAIN_ROOT": "/b"}, slurm) == tmp_path / "a"
    assert str(find_root(None, {"SLURMTRAIN_ROOT": "/b"}, slurm)) == "/b"
    slurm.config["ClusterName"] = "devcluster"
    assert str(find_root(None, {"HOME": "/home/ada"}, slurm)).startswith("/home/ada/")
    slurm.down = True
    with pytest.raises(ConfigError, match="no site is chosen"):
        find_root(None, {}, slurm)
    (tmp_path / "runs").mkdir()
    assert find_root(None, {}, slurm) == tmp_path / "runs"
    with pytest.raises(ConfigError, match="no site 'gone'"):
        find_root(None, {"SLURMTRAIN_SITE": "gone"}, slurm)
