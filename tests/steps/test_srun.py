"""srun: its command, its environment, how a step is found and ended; the same contract on a real cluster."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from slurmtrain.clock import SystemClock
from slurmtrain.errors import LaunchError, SlurmUnavailableError
from slurmtrain.shell import SystemShell
from slurmtrain.slurm.cli_client import CliSlurm
from slurmtrain.slurm.types import JobInfo
from slurmtrain.steps.launcher import StepSpec, launcher_log
from slurmtrain.steps.srun import AFTER_KILL_S, SrunLauncher, output_pattern, step_name
from tests.fakes.clock import FakeClock
from tests.fakes.shell import FakeProcess, FakeShell
from tests.fakes.slurm import FakeSlurm
from tests.fakes.steps import log_text
from tests.steps.conformance import STUBBORN, LauncherConformance, processes_with, until

BATCH = {
    "PATH": "/bin",
    "SLURM_JOB_ID": "7",
    "SLURM_NTASKS": "12",
    "SLURM_CPU_BIND": "junk",
    "SRUN_DEBUG": "1",
    "SLURM_JOB_NODELIST": "n[1-3]",
}


class Stage:
    """A fake cluster with job 7, and a fake srun that makes a step of its own name."""

    def __init__(self, folder: Path, *, ignores: frozenset[int] = frozenset(), makes_step: bool = True) -> None:
        self.clock = FakeClock()
        self.slurm = FakeSlurm(self.clock)
        self.slurm.put(JobInfo("7", "job", "RUNNING", nodes=("n1", "n2", "n3")))
        self.spec = StepSpec(("python", "x"), ("n3", "n1"), 4, folder / "node-%n.log", job_id="7", mpi="pmix")
        self._ignores, self._makes_step = ignores, makes_step
        self.shell = FakeShell({}, {("srun",): self._srun})
        self.launcher = SrunLauncher(self.shell, self.clock, BATCH, self.slurm)

    def _srun(self, call) -> FakeProcess:
        if self._makes_step:
            (name,) = [word.partition("=")[2] for word in call.argv if word.startswith("--job-name=")]
            self.slurm.step("7", "batch")
            self.slurm.step("7", name)
        return FakeProcess(call, ignores=self._ignores)

    def start(self):
        return self.launcher.start(self.spec), self.shell.started[-1]


def test_the_whole_command(tmp_path):
    spec = StepSpec(
        ("python", "-m", "slurmtrain.train", "/r"), ("n3", "n1"), 4, Path("/r/attempts/0003/node-%n.log"), job_id="7", cpus_per_task=8,
        gpus_per_node=4, mpi="pmix", cwd=Path("/r/code"), options=("--cpu-bind=cores",), environment={"A": "1,2"},
    )  # fmt: skip
    argv = SrunLauncher(FakeShell(), FakeClock(), BATCH, FakeSlurm(FakeClock())).argv(spec)
    assert argv == [
        "srun", "--jobid=7", f"--job-name={step_name(spec)}", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--nodelist=n[1,3]",
        "--cpus-per-task=8", "--gpus-per-node=4", "--overlap", "--mpi=pmix", "--kill-on-bad-exit=1", "--wait=0", "--export=ALL",
        "--open-mode=append", "--output=/r/attempts/0003/node-%3n.log", "--chdir=/r/code", "--cpu-bind=cores",
        "python", "-m", "slurmtrain.train", "/r",
    ]  # fmt: skip
    assert step_name(spec).startswith("0003-")


def test_a_check_without_mpi_and_gpus_lets_each_node_answer_for_itself(tmp_path):
    stage = Stage(tmp_path)
    argv = stage.launcher.argv(StepSpec(("true",), ("n1",), 1, tmp_path / "check-%n.log", job_id="7"))
    assert {"--mpi=none", "--kill-on-bad-exit=0"} < set(argv)
    assert not [word for word in argv if word.startswith("--gpus")]


def test_the_environment_is_slurms_own_without_its_options_and_the_specs_values(tmp_path):
    stage = Stage(tmp_path)
    spec = StepSpec(("true",), ("n1",), 1, tmp_path / "node-%n.log", job_id="7", environment={"A": "1,2"}, cwd=tmp_path)
    stage.launcher.start(spec)
    (call,) = stage.shell.calls
    assert call.env == {"PATH": "/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "A": "1,2"}
    assert (call.cwd, call.stdout) == (tmp_path, tmp_path / "launcher-node.log")


@pytest.mark.parametrize(("given", "number"), [("7", "7"), ("7;lux", "7"), ("5_1", "7"), ("", "7")])
def test_the_number_of_the_job_also_of_an_arrays_member(tmp_path, given, number):
    argv = Stage(tmp_path).launcher.argv(StepSpec(("true",), ("n1",), 1, tmp_path / "node-%n.log", job_id=given))
    assert argv[1] == f"--jobid={number}"


def test_outside_a_job_it_is_refused(tmp_path):
    launcher = SrunLauncher(FakeShell(), FakeClock(), {"PATH": "/bin"}, FakeSlurm(FakeClock()))
    with pytest.raises(LaunchError, match="SLURM_JOB_ID is not set"):
        launcher.start(StepSpec(("true",), ("n1",), 1, tmp_path / "node-%n.log"))


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("/r/node-%n.log", "/r/node-%3n.log"),
        ("/r/50% %j/node-%n.log", "/r/50%% %%j/node-%3n.log"),
        ("/r/%n/a%%n.log", "/r/%%n/a%%%3n.log"),
        ("/r/it's/one.log", "/r/it's/one.log"),
    ],
)
def test_paths_are_written_so_that_srun_reads_them_as_they_are(path, pattern):
    assert output_pattern(Path(path)) == pattern


def test_a_backslash_which_srun_would_swallow_is_refused():
    with pytest.raises(LaunchError, match="backslash"):
        output_pattern(Path("/r/a\\b/node-%n.log"))


def test_steps_of_one_job_have_names_of_their_own(tmp_path):
    base = Stage(tmp_path).spec
    others = [
        StepSpec(("python", "y"), base.nodes, 4, base.output),
        StepSpec(base.command, ("n1",), 4, base.output),
        StepSpec(base.command, base.nodes, 4, tmp_path / "check-%n.log"),
        StepSpec(base.command, base.nodes, 4, tmp_path / "0004/node-%n.log"),
    ]
    assert len({step_name(spec) for spec in (base, *others)}) == 5
    assert step_name(base) == step_name(Stage(tmp_path).spec)


def test_the_end_asks_the_step_and_waits_for_srun(tmp_path):
    stage = Stage(tmp_path)
    step, srun = stage.start()
    stage.clock.at(3, lambda: (srun.finish(0), stage.slurm.end_step("7", step.name)))
    keep_step_on_term(stage)
    start = stage.clock.monotonic()
    step.end(15)
    assert [(deed.step, deed.signal) for deed in stage.slurm.cancelled] == [("1", "TERM")]
    assert srun.signals == []
    assert 3 <= stage.clock.monotonic() - start < 6


def keep_step_on_term(stage: Stage) -> None:
    """TERM alone does not end the step; slurmctld does."""
    cancel = stage.slurm.cancel

    def gentle(job_id, *, step=None, signal=None, batch=False):
        kept = list(stage.slurm.steps(job_id))
        cancel(job_id, step=step, signal=signal, batch=batch)
        if signal == "TERM":
            stage.slurm._steps[job_id] = kept

    stage.slurm.cancel = gentle


def test_what_does_not_go_is_killed_after_the_grace_and_srun_with_it(tmp_path):
    stage = Stage(tmp_path)
    step, srun = stage.start()
    keep_step_on_term(stage)
    start = stage.clock.monotonic()
    step.end(10)
    assert [deed.signal for deed in stage.slurm.cancelled] == ["TERM", None]
    assert srun.signals == [signal.SIGKILL]
    assert step.poll() == -signal.SIGKILL
    assert 10 <= stage.clock.monotonic() - start <= 10 + AFTER_KILL_S + 1


def test_after_srun_was_killed_its_step_is_found_by_name_and_ended(tmp_path):
    stage = Stage(tmp_path)
    step, srun = stage.start()
    srun.kill_group()
    step.end(10)
    assert [(deed.job_id, deed.step, deed.signal) for deed in stage.slurm.cancelled] == [("7", "1", "TERM")]
    assert stage.slurm.steps("7")[0].name == "batch"


def test_without_a_grace_the_step_is_ended_by_slurmctld_alone(tmp_path):
    """TERM goes to each node, and a dead one costs seconds."""
    stage = Stage(tmp_path)
    step, _ = stage.start()
    start = stage.clock.monotonic()
    step.end(0.0)
    assert [deed.signal for deed in stage.slurm.cancelled] == [None]
    assert stage.clock.monotonic() - start <= AFTER_KILL_S + 1


def test_an_abandoned_step_is_waited_for_by_nobody(tmp_path):
    stage = Stage(tmp_path)
    step, srun = stage.start()
    start = stage.clock.monotonic()
    step.abandon()
    assert ([deed.signal for deed in stage.slurm.cancelled], srun.signals) == ([None], [signal.SIGKILL])
    assert stage.clock.monotonic() == start


def test_a_node_that_hangs_keeps_nobody_waiting(tmp_path):
    """scancel -s TERM then takes 5 s and fails; the other nodes have heard it (tried)."""
    stage = Stage(tmp_path)
    step, srun = stage.start()
    stage.clock.at(6, lambda: srun.finish(143))
    cancel = stage.slurm.cancel

    def slow(job_id, *, step=None, signal=None, batch=False):
        if signal == "TERM":
            stage.clock.advance(5)
            raise SlurmUnavailableError("scancel: Slurm does not answer: Communication connection failure")
        cancel(job_id, step=step, signal=signal, batch=batch)

    stage.slurm.cancel = slow
    step.end(3)
    assert srun.signals == []
    assert [(deed.step, deed.signal) for deed in stage.slurm.cancelled] == [("1", None)]
    assert stage.slurm.steps("7")[0].name == "batch"


def test_a_srun_that_has_no_step_yet_is_asked_itself(tmp_path):
    stage = Stage(tmp_path, makes_step=False)
    step, srun = stage.start()
    step.end(10)
    assert srun.signals == [signal.SIGTERM]
    assert stage.slurm.cancelled == []


def test_without_an_answer_of_slurm_srun_is_asked_and_then_killed(tmp_path):
    stage = Stage(tmp_path, ignores=frozenset({signal.SIGTERM}))
    step, srun = stage.start()
    stage.slurm.down = True
    start = stage.clock.monotonic()
    step.end(10)
    assert srun.signals == [signal.SIGTERM, signal.SIGKILL]
    assert stage.clock.monotonic() - start <= 10 + AFTER_KILL_S + 1


def test_while_srun_lives_slurm_is_not_asked_again_and_again(tmp_path):
    stage = Stage(tmp_path)
    step, _ = stage.start()
    keep_step_on_term(stage)
    step.end(600)
    assert stage.slurm.questions.count("steps") < 12


def test_the_words_are_those_of_srun_alone(tmp_path):
    stage = Stage(tmp_path)
    step, _ = stage.start()
    assert step.words() == ""
    launcher_log(stage.spec).write_text("srun: error: n1: task 3: Exited with exit code 7\n")
    (tmp_path / "node-000.log").write_text("a rank\n")
    assert step.words() == "srun: error: n1: task 3: Exited with exit code 7\n"


@pytest.fixture(scope="class")
def allocation(cluster, tmp_path_factory):
    """A job of two nodes that does nothing."""
    folder = tmp_path_factory.mktemp("allocation")
    script = folder / "idle.sh"
    script.write_text("#!/bin/bash\nexec sleep 600\n")
    size = ("--nodes=2", "--nodelist=n1,n2", "--ntasks-per-node=4", "--gpus-per-node=4", "--mem=0", "--exclusive")
    job = cluster.sbatch(*size, script, cwd=folder)
    cluster.wait_job(job, "RUNNING")
    yield job
    cluster.run(["scancel", job], check=False)


@pytest.mark.slurm
class TestSrunLauncher(LauncherConformance):
    def job_id(self, request):
        return request.getfixturevalue("allocation")

    @pytest.fixture
    def slurm(self, cluster, tmp_path):
        return CliSlurm(SystemShell(), SystemClock(), cluster.environ, cache_dir=tmp_path / "cache")

    @pytest.fixture
    def launcher(self, cluster, allocation, slurm):
        junk = {
            "SLURM_NTASKS": "99",
            "SLURM_CPU_BIND": "junk",
            "SLURM_MPI_TYPE": "gone",
            "SRUN_CPUS_PER_TASK": "64",
            "SLURM_DISTRIBUTION": "x",
        }
        return SrunLauncher(SystemShell(), SystemClock(), {**cluster.environ, "SLURM_JOB_ID": allocation, **junk}, slurm)

    @pytest.fixture
    def missing(self, allocation, slurm, tmp_path):
        return SrunLauncher(SystemShell(), SystemClock(), {"PATH": str(tmp_path), "SLURM_JOB_ID": allocation}, slurm)

    def test_a_log_for_each_node_in_slurms_order_and_gpus_as_asked(self, launcher, spec, folder):
        code = (
            "import os; env = os.environ; "
            "os.write(1, f\"{env['SLURMD_NODENAME']} {env['SLURM_LOCALID']} {env['CUDA_VISIBLE_DEVICES']}\\n\".encode())"
        )
        step = launcher.start(spec(code, gpus_per_node=2))
        assert step.wait(40) == 0, step.words()
        logs = {path.name: sorted(path.read_text().splitlines()) for path in folder.glob("node-*.log")}
        assert logs == {f"node-00{i}.log": [f"n{i + 1} 0 0,1", f"n{i + 1} 1 0,1"] for i in range(2)}

    def test_two_steps_run_beside_each_other_and_one_ends_alone(self, launcher, spec, folder, slurm, allocation):
        first = launcher.start(spec("import time; print('up', flush=True); time.sleep(600)", "first"))
        second = launcher.start(spec("import time; print('up', flush=True); time.sleep(600)", "second"))
        until(lambda: log_text(folder / "node-%n.log").count("up") == 8)
        first.end(5)
        assert second.poll() is None
        assert [step.name for step in slurm.steps(allocation) if step.step != "batch"] == [second.name]
        second.end(5)

    def test_the_step_of_a_killed_srun_is_cleaned_up(self, launcher, spec, folder, slurm, allocation):
        """Case C64."""
        word = f"orphan-{folder.parent.name}"
        step = launcher.start(spec(STUBBORN, word))
        until(lambda: log_text(folder / "node-%n.log").count("up") == 4)
        os.kill(step.pid, signal.SIGKILL)
        assert step.wait(5) == -signal.SIGKILL
        step.end(0.5)
        until(lambda: not processes_with(word), 10)
        until(lambda: [info.step for info in slurm.steps(allocation)] == ["batch"], 10)
        again = launcher.start(spec("pass"))
        assert again.wait(20) == 0, again.words()

    def test_what_a_rank_ended_with_is_in_the_words_by_node_and_task(self, launcher, spec):
        code = "import os, sys, time; sys.exit(7) if os.environ['SLURM_PROCID'] == '3' else time.sleep(60)"
        step = launcher.start(spec(code, mpi="pmi2"))
        assert step.wait(40) not in {0, None}
        assert "srun: error: n2: task 3: Exited with exit code 7" in step.words()

    def test_the_ranks_are_one_mpi_world(self, launcher, spec, folder):
        code = "import os; from mpi4py import MPI; os.write(1, b'%d\\n' % MPI.COMM_WORLD.size)"  # at once: tasks of a node share a log
        step = launcher.start(spec(code, mpi="pmi2"))
        assert step.wait(60) == 0, step.words() + log_text(folder / "node-%n.log")
        assert log_text(folder / "node-%n.log").split() == ["4"] * 4
