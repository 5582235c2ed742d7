"""A handle waits for the run's end: without sacct, and through requeues."""

from __future__ import annotations

import os
import pickle
import time

import pytest
from submitit.core import utils

from slurmtrain.launch.job import ClientWatcher, RunJob
from slurmtrain.rundir import RunDir
from slurmtrain.slurm.types import JobInfo
from tests.fakes.clock import FakeClock
from tests.fakes.slurm import FakeSlurm


@pytest.fixture
def slurm():
    made = FakeSlurm(FakeClock())
    made.put(JobInfo("12", "llama", "RUNNING", start_time=1000.0))
    return made


@pytest.fixture
def handle(tmp_path, slurm):
    run = RunDir(tmp_path / "llama")
    run.create()
    return RunJob(run.submit, "12", watcher=ClientWatcher(slurm))


def write_result(handle, value, t: float) -> None:
    utils.cloudpickle_dump(("success", value), handle.paths.result_pickle)
    os.utime(handle.paths.result_pickle, (t, t))


def done(handle) -> bool:
    time.sleep(0.002)  # submitit never asks twice within a millisecond
    return handle.done(force_check=True)


def test_a_running_job_is_not_done(handle):
    assert not done(handle)
    assert handle.state == "RUNNING"


def test_the_result_is_what_the_payload_returned(handle, slurm):
    write_result(handle, {"code": 0}, 2000.0)
    slurm.change("12", state="COMPLETED")
    assert handle.result() == {"code": 0}
    assert handle.exception() is None


@pytest.mark.parametrize(
    "state", ["PREEMPTED", "NODE_FAIL", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "PENDING", "COMPLETING", "SUSPENDED"]
)
def test_states_that_a_requeued_job_passes_through_are_not_the_end(handle, slurm, state):
    slurm.change("12", state=state)
    assert not done(handle)


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY"])
def test_states_that_are_the_end(handle, slurm, state):
    slurm.change("12", state=state)
    assert done(handle)


def test_a_job_that_slurm_has_forgotten_is_over_without_accounting(handle, slurm):
    assert not done(handle)
    slurm.forget("12")
    assert done(handle)
    assert handle.state == "GONE"


def test_accounting_tells_the_state_where_there_is_one(handle, slurm):
    slurm.forget("12")
    slurm.accounting["12"] = JobInfo("12", "llama", "NODE_FAIL")
    assert done(handle)
    assert handle.state == "NODE_FAIL"


def test_no_answer_changes_nothing(handle, slurm):
    assert not done(handle)
    slurm.down = True
    assert not done(handle)
    assert handle.state == "RUNNING"


def test_the_result_of_an_earlier_start_does_not_count(handle, slurm):
    write_result(handle, {"code": 75}, 1500.0)
    slurm.change("12", state="PENDING", restarts=1)
    assert not done(handle)
    slurm.change("12", state="RUNNING", start_time=1600.0)
    assert not done(handle)
    write_result(handle, {"code": 0}, 1700.0)
    assert done(handle)


def test_over_jobs_are_not_asked_about_again(handle, slurm):
    slurm.change("12", state="FAILED")
    assert done(handle)
    slurm.questions.clear()
    assert done(handle)
    assert slurm.questions == []


def test_the_log_is_the_runs(handle):
    RunDir(handle.paths.folder.parent).slurm_out("12").write_text("step 1\n")
    assert handle.stdout() == "step 1\n"
    assert handle.stderr() is None


def test_a_job_that_left_no_result_says_so_with_its_log(handle, slurm, monkeypatch):
    monkeypatch.setattr(RunJob, "_results_timeout_s", 0)
    RunDir(handle.paths.folder.parent).slurm_out("12").write_text("the last words\n")
    slurm.change("12", state="CANCELLED")
    with pytest.raises(utils.UncompletedJobError, match="the last words"):
        handle.result()


def test_cancel_goes_through_the_client(handle, slurm):
    handle.cancel()
    assert [c.job_id for c in slurm.cancelled] == ["12"]
    slurm.down = True
    handle.cancel(check=False)


def test_a_handle_can_be_kept_for_later(handle):
    again = pickle.loads(pickle.dumps(handle))
    assert (again.job_id, again.paths.stdout) == (handle.job_id, handle.paths.stdout)
    assert not done(again)
