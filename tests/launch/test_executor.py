"""What is on disk when sbatch is called, what sbatch is told, and which handle comes back."""

from __future__ import annotations

import pickle
import shutil

import pytest
import submitit
from submitit.core.utils import DelayedSubmission

from slurmtrain.errors import ConfigError, SlurmError, SubmitUnknownError
from slurmtrain.launch.executor import SlurmExecutor
from slurmtrain.launch.job import RunJob
from slurmtrain.launch.render import render
from slurmtrain.rundir import RunDir
from tests.fakes.clock import FakeClock
from tests.fakes.disk import FakeDisk
from tests.fakes.slurm import FakeSlurm
from tests.launch.samples import job, request, templates


class WatchingSlurm(FakeSlurm):
    """Looks at the disk at the moment of sbatch, and may refuse."""

    seen: list[str]
    refusal: SlurmError | None = None

    def submit(self, script, *, options=()):
        self.seen = sorted(p.name for p in script.parent.iterdir())
        self.text = script.read_text()
        if self.refusal:
            raise self.refusal
        return super().submit(script, options=options)


@pytest.fixture
def slurm():
    return WatchingSlurm(FakeClock())


@pytest.fixture(autouse=True)
def _no_srun(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)


def executor(folder, slurm, a_job=None, name="llama"):
    run = RunDir(folder / name)
    run.create()
    made = request(a_job, run=run.path)
    return SlurmExecutor(made, lambda runs: render(made, templates(), runs=runs), client=slurm, disk=FakeDisk()), run


def payload(run_path: str) -> dict:
    return {"run": run_path}


def test_one_job(tmp_path, slurm):
    made, run = executor(tmp_path, slurm)
    (handle,) = made.submit_run(payload)
    assert slurm.seen == ["job.sbatch", "pending.pkl"]
    assert slurm.submitted == [(run.script, (f"--output={run.path}/slurm-%j.out",))]
    assert slurm.text == run.script.read_text()
    assert type(handle) is RunJob
    assert handle.job_id == "1"
    assert sorted(p.name for p in run.submit.iterdir()) == ["1_submitted.pkl", "job.sbatch"]


def test_the_pickle_is_tiny_and_calls_the_payload_with_the_run_folder(tmp_path, slurm):
    made, run = executor(tmp_path, slurm)
    made.submit_run(payload)
    path = run.submit / "1_submitted.pkl"
    assert path.stat().st_size < 1000
    assert DelayedSubmission.load(path).result() == {"run": str(run.path)}


def test_one_task_whatever_the_nodes(tmp_path, slurm):
    made, _ = executor(tmp_path, slurm, job(nodes=8, spares=2))
    assert made.submit_run(payload)[0].num_tasks == 1


def test_submitits_own_interface_gives_the_same(tmp_path, slurm):
    made, run = executor(tmp_path, slurm)
    assert isinstance(made, submitit.SlurmExecutor)
    assert type(made.submit(payload, str(run.path))) is RunJob
    with pytest.raises(TypeError, match="the request says everything"):
        made.update_parameters(time=5)


def test_segments_are_one_array_of_one_run(tmp_path, slurm):
    made, run = executor(tmp_path, slurm, job(array="1-3%1"))
    handles = made.submit_run(payload)
    assert slurm.seen == ["job.sbatch", "pending_1.pkl", "pending_2.pkl", "pending_3.pkl"]
    assert "#SBATCH --array=1-3%1" in slurm.text
    assert slurm.submitted[0][1] == (f"--output={run.path}/slurm-%A_%a.out",)
    assert [handle.job_id for handle in handles] == ["1_1", "1_2", "1_3"]
    assert {type(handle) for handle in handles} == {RunJob}
    assert (run.submit / "1_3_submitted.pkl").exists()


def test_several_runs_are_one_array_with_class_template_and_interpreter(tmp_path, slurm):
    made, first = executor(tmp_path, slurm)
    second = RunDir(tmp_path / "the second")
    second.create()
    handles = made.submit_runs(payload, [first, second])
    assert slurm.submitted == [(first.array_script, ("--array=0-1", f"--output={first.submit}/slurm-%A_%a.out"))]
    assert f"0) slurmtrain_run={first.path}" in slurm.text
    assert f"1) slurmtrain_run='{second.path}'" in slurm.text
    assert "slurmtrain_python=/env/bin/python" in slurm.text
    assert {type(handle) for handle in handles} == {RunJob}
    assert [handle.job_id for handle in handles] == ["1_0", "1_1"]
    assert (second.submit / "1_1_submitted.pkl").exists()
    assert DelayedSubmission.load(second.submit / "1_1_submitted.pkl").args == (str(second.path),)


def test_submitits_batch_context_is_an_array_too(tmp_path, slurm):
    made, first = executor(tmp_path, slurm)
    second = RunDir(tmp_path / "two")
    second.create()
    with made.batch():
        handles = [made.submit(payload, str(run.path)) for run in (first, second)]
    assert {type(handle) for handle in handles} == {RunJob}
    assert len(slurm.submitted) == 1


def test_an_array_that_the_cluster_cannot_hold_is_refused_with_both_numbers(tmp_path, slurm):
    made, run = executor(tmp_path, slurm, job(array="1-11%1"))
    with pytest.raises(ConfigError, match=r"slurm.array: the last member is 11.*MaxArraySize of 11.*to 10"):
        made.submit_run(payload)
    assert not slurm.submitted
    assert list(run.submit.iterdir()) == []
    executor(tmp_path, slurm, job(array="1-10%1"), name="fits")[0].submit_run(payload)


def test_a_run_with_segments_takes_no_others(tmp_path, slurm):
    made, run = executor(tmp_path, slurm, job(array="1-3%1"))
    with pytest.raises(ConfigError, match="segments"):
        made.submit_runs(payload, [run, run])


@pytest.mark.parametrize("refusal", [SlurmError("sbatch: invalid partition"), SubmitUnknownError("no answer")])
def test_a_refusal_leaves_no_pickle_behind(tmp_path, slurm, refusal):
    slurm.refusal = refusal
    made, run = executor(tmp_path, slurm)
    with pytest.raises(type(refusal)):
        made.submit_run(payload)
    assert [p.name for p in run.submit.iterdir()] == ["job.sbatch"]


def test_a_job_on_another_cluster(tmp_path, slurm):
    slurm.submit = lambda script, *, options=(): "7;far"
    made, run = executor(tmp_path, slurm)
    (handle,) = made.submit_run(payload)
    assert handle.job_id == "7"
    assert (run.submit / "7_submitted.pkl").exists()
    asked = []
    slurm.job = asked.append
    handle.done()
    assert asked == ["7;far"]


def test_the_pickle_names_the_payload_by_module_where_it_has_one(tmp_path, slurm):
    from slurmtrain.resilience.payload import run as real

    made, run = executor(tmp_path, slurm)
    made.submit_run(real)
    delayed = pickle.loads((run.submit / "1_submitted.pkl").read_bytes())
    assert delayed.function is real
