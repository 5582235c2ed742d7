"""mpiexec: emulated nodes on one machine."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from slurmtrain.clock import SystemClock
from slurmtrain.errors import LaunchError
from slurmtrain.shell import SystemShell
from slurmtrain.steps.launcher import StepSpec
from slurmtrain.steps.mpiexec import MpiexecLauncher
from tests.fakes.clock import FakeClock
from tests.fakes.shell import FakeProcess, FakeShell, Said
from tests.fakes.steps import log_text
from tests.steps.conformance import STUBBORN, LauncherConformance, processes_with, until

OURS = Path(sys.executable).with_name("mpiexec")
WORLD = """
import os
from mpi4py import MPI
comm = MPI.COMM_WORLD
row = comm.gather((os.environ["SLURMTRAIN_NODE"], comm.rank, comm.size))
if comm.rank == 0:
    print(row)
"""
OPEN_MPI = "mpiexec (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n"


def spec(folder: Path, *command: str, **more) -> StepSpec:
    return StepSpec(command or (sys.executable, "-c", "pass"), ("n2", "n1"), 2, folder / "node-%n.log", **more)


@pytest.mark.mpi
class TestMpiexecLauncher(LauncherConformance):
    @pytest.fixture
    def launcher(self):
        return MpiexecLauncher(SystemShell(), SystemClock(), os.environ)

    @pytest.fixture
    def missing(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        launcher = MpiexecLauncher(SystemShell(), SystemClock(), {"PATH": str(tmp_path)})
        monkeypatch.setattr(launcher, "program", lambda _spec: MpiexecLauncher.program(launcher, spec(tmp_path, "python")))
        return launcher

    def test_the_ranks_are_one_world_in_blocks_of_nodes(self, launcher, tmp_path):
        step = launcher.start(spec(tmp_path, sys.executable, "-c", WORLD))
        assert step.wait(60) == 0
        assert (tmp_path / "node-000.log").read_text() == "[('n2', 0, 4), ('n2', 1, 4), ('n1', 2, 4), ('n1', 3, 4)]\n"

    def test_inside_an_allocation_it_stays_on_this_machine(self, tmp_path):
        junk = {"SLURM_JOB_ID": "7", "SLURM_NODELIST": "n[1-2]", "SLURM_NNODES": "2", "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_LOCALID": "9"}
        launcher = MpiexecLauncher(SystemShell(), SystemClock(), {**os.environ, **junk, "PMI_RANK": "3", "PMI_SIZE": "9", "PMI_FD": "77"})
        step = launcher.start(spec(tmp_path, sys.executable, "-c", WORLD + "assert 'SLURM_LOCALID' not in os.environ"))
        assert step.wait(60) == 0, log_text(tmp_path / "node-%n.log")

    def test_killing_mpiexec_leaves_nobody_after_the_end(self, launcher, tmp_path):
        step = launcher.start(spec(tmp_path, sys.executable, "-c", STUBBORN, f"orphan-{tmp_path.name}"))
        until(lambda: log_text(tmp_path / "node-%n.log").count("up") == 4)
        os.kill(step.pid, signal.SIGKILL)
        step.end(0.1)
        assert not processes_with(f"orphan-{tmp_path.name}")

    def test_a_rank_that_is_killed_is_named_by_its_code_in_the_launchers_words(self, launcher, tmp_path):
        die = "import os, signal; from mpi4py import MPI\nif MPI.COMM_WORLD.rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        step = launcher.start(spec(tmp_path, sys.executable, "-c", die + "MPI.COMM_WORLD.barrier()"))
        assert step.wait(60) not in {0, None}
        assert "EXIT CODE: 9" in step.words()


def test_the_command_names_each_block_and_starts_without_slurm(tmp_path):
    launcher = MpiexecLauncher(FakeShell(), FakeClock(), {"PATH": "/bin"})
    block = ["-n", "2", "-env", "SLURMTRAIN_NODE"]
    ranks = [sys.executable, "-c", "pass"]
    assert launcher.argv(spec(tmp_path)) == [str(OURS), "-launcher", "fork", *block, "n2", *ranks, ":", *block, "n1", *ranks]


def test_the_mpiexec_beside_the_ranks_interpreter_comes_first(tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("mpiexec", "python"):
        (tmp_path / "bin" / name).write_text("")
    launcher = MpiexecLauncher(FakeShell(), FakeClock(), {"PATH": "/bin"})
    assert launcher.program(spec(tmp_path, str(tmp_path / "bin/python"))) == tmp_path / "bin/mpiexec"
    assert launcher.program(spec(tmp_path, "python")) == OURS


def test_open_mpis_mpiexec_beside_the_mpich_wheel_is_refused_before_anything_starts(tmp_path):
    shell = FakeShell({(str(OURS), "--version"): Said(OPEN_MPI)}, {(str(OURS),): FakeProcess})
    with pytest.raises(LaunchError, match=r"is Open MPI's, and this Python's MPI is the mpich wheel \d"):
        MpiexecLauncher(shell, FakeClock(), {"PATH": "/bin"}).start(spec(tmp_path))
    assert shell.started == []


def test_hydra_is_asked_once_for_its_name(tmp_path):
    shell = FakeShell({(str(OURS), "--version"): Said("HYDRA build details:\n    Version: 5.0.2\n")}, {(str(OURS),): FakeProcess})
    launcher = MpiexecLauncher(shell, FakeClock(), {"PATH": "/bin", "SLURM_JOB_ID": "7"})
    for _ in range(2):
        launcher.start(spec(tmp_path, environment={"A": "1"}))
    assert len(shell.asked(str(OURS), "--version")) == 1
    started = shell.calls[-1]
    assert (started.env["A"], "SLURM_JOB_ID" in started.env, started.stdout) == ("1", False, tmp_path / "node-000.log")


def test_a_lone_colon_would_be_read_as_another_program(tmp_path):
    with pytest.raises(LaunchError, match="lone colon"):
        MpiexecLauncher(FakeShell(), FakeClock(), {}).argv(spec(tmp_path, "python", ":"))
