"""The check of a node: what it writes about this machine, and what it says when it cannot."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys

import numpy as np
import psutil
import pytest

from slurmtrain import __version__
from slurmtrain.config.site import SiteConfig
from slurmtrain.preflight.answer import cpus, limits, memory_bytes, node_name, packages, read_answer
from slurmtrain.preflight.node import write_faults
from slurmtrain.preflight.request import Request
from slurmtrain.rundir import RunDir
from tests.mpi_world import clean_environment


def check(run: RunDir, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "slurmtrain.preflight.node", str(run.attempt(1).request), *options]
    return subprocess.run(argv, env=clean_environment(env), capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def run(tmp_path) -> RunDir:
    made = RunDir(tmp_path / "a run")
    made.create()
    made.attempt(1).create()
    attempt = made.attempt(1)
    attempt.nonce.write_text("word")
    site = SiteConfig.model_validate({"name": "here", "device": "cpu", "node": {"gpus": 1}})
    request = Request(1.0, str(attempt.nodes_dir), "word", str(attempt.nonce), (str(made.checkpoints), str(made.events)), site)
    attempt.request.write_bytes(request.to_json())
    return made


def test_the_answer_tells_of_this_machine(run):
    done = check(run, SLURMTRAIN_NODE="n7")
    assert done.returncode == 0, done.stderr
    answer = read_answer(run.attempt(1).node_answer("n7"))
    assert (answer.node, answer.ok, answer.problems, answer.nonce) == ("n7", True, (), "word")
    assert (answer.python, answer.version, answer.packages["numpy"]) == (platform.python_version(), __version__, np.__version__)
    assert 0 < answer.cpus <= os.cpu_count()
    assert 0 < answer.memory_bytes <= psutil.virtual_memory().total


def test_a_folder_that_this_node_does_not_see_is_said_with_its_path(run):
    run.attempt(1).nonce.unlink()
    done = check(run, SLURMTRAIN_NODE="n7")
    assert done.returncode == 1
    assert done.stderr.startswith("n7: cannot read ")
    assert "all nodes see" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_answer_that_cannot_be_written_is_said(run):
    run.attempt(1).nodes_dir.rmdir()
    done = check(run, SLURMTRAIN_NODE="n7")
    assert done.returncode == 1
    assert "cannot write" in done.stderr


def test_a_folder_in_which_no_file_can_be_made_is_a_problem(tmp_path):
    (tmp_path / "events").write_text("a file where a folder should be")
    assert [str(tmp_path / "events") in line for line in write_faults([tmp_path / "events", tmp_path / "checkpoints"])] == [True]
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_limits_are_in_bashs_units():
    said = subprocess.run(["bash", "-c", "ulimit -n; ulimit -l; ulimit -s; ulimit -c"], capture_output=True, text=True, check=True).stdout
    expected = [-1 if word == "unlimited" else int(word) for word in said.split()]
    assert [limits()[flag] for flag in "nlsc"] == expected
    assert set(limits()) <= set("cdefilmnqrstuvx")
    assert limits()["n"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_what_slurm_says_about_the_node_goes_before_what_the_machine_says():
    assert cpus({"SLURM_CPUS_ON_NODE": "96"}) == 96
    assert cpus({}) == len(os.sched_getaffinity(0))
    assert memory_bytes({"SLURM_MEM_PER_NODE": "1"}) == 1 << 20
    assert memory_bytes({"SLURM_MEM_PER_NODE": "0"}) == memory_bytes({}) <= psutil.virtual_memory().total


def test_the_nodes_name():
    assert node_name({"SLURMTRAIN_NODE": "a", "SLURMD_NODENAME": "b"}) == "a"
    assert node_name({"SLURMD_NODENAME": "b"}) == "b"
    assert node_name({}) == platform.node()


def test_packages_that_are_not_installed_are_left_out():
    assert "torch" in packages()
    assert all(packages().values())


def test_no_answer_and_a_torn_one_are_none(tmp_path):
    assert read_answer(tmp_path / "n1.json") is None
    (tmp_path / "n2.json").write_text('{"node": "n2"')
    assert read_answer(tmp_path / "n2.json") is None


def test_the_check_loads_nothing_heavy(run):
    code = "import sys, slurmtrain.preflight.node; sys.exit(bool({'torch', 'numpy', 'mpi4py', 'h5py'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
