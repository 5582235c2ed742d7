"""`slurmtrain cancel`: the job ends, the history knows who did it, and `status` says CANCELLED."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from unittest.mock import Mock

import psutil
import pytest

from slurmtrain.atomic import to_json
from slurmtrain.config.stored import read_job
from slurmtrain.errors import SlurmUnavailableError
from slurmtrain.resilience.records import Outcome
from slurmtrain.telemetry.history import add_act, read_acts
from tests.cli.desk import Desk, one_line_of
from tests.cli.ran import attempted, owned, submitted


@pytest.fixture
def desk(tmp_path) -> Desk:
    return Desk(tmp_path)


def state(desk: Desk) -> str:
    return json.loads(desk.type("status", "job", "--json").stdout)["state"]


@pytest.mark.parametrize("waits", [True, False])
def test_the_job_is_cancelled_and_status_tells_it_also_when_slurm_has_forgotten(desk, waits):
    run, job_id = submitted(desk, state="PENDING" if waits else "RUNNING")
    if not waits:
        attempted(desk, run, job_id)
    result = desk.type("cancel", "job")
    assert (result.exit_code, result.stdout) == (0, f"cancelled job {job_id} of run job\n")
    assert [(c.job_id, c.step, c.signal) for c in desk.slurm.cancelled] == [(job_id, None, None)]
    assert read_acts(run)[-1].what == "cancel"
    assert state(desk) == "CANCELLED"
    if not waits:
        attempted(desk, run, job_id, steps=range(0), outcome=Outcome("requeue", "stopped at a checkpoint", signal="TERM"))
        add_act(run, desk.disk, desk.clock.time(), "cancel", job_id=job_id)
    desk.slurm.forget(job_id)
    assert state(desk) == "CANCELLED"


def test_a_full_disk_keeps_nobody_from_cancelling(desk):
    """Broken: the job ran on, and the message named a file alone."""
    run, job_id = submitted(desk, state="PENDING")
    desk.disk.faults["append"] = None
    told = f"cancelled job {job_id} of run job; {run.history_jsonl}: No space left on device: the run's history does not tell of it\n"
    assert desk.type("cancel", "job").stdout == told
    assert [one.job_id for one in desk.slurm.cancelled] == [job_id]
    assert state(desk) == "CANCELLED"


def test_a_cancel_that_slurm_did_not_hear_leaves_the_run_as_it_is_and_can_be_said_again(desk):
    _, job_id = submitted(desk, state="PENDING")
    desk.slurm.cancel, real = Mock(side_effect=SlurmUnavailableError("scancel: Slurm does not answer")), desk.slurm.cancel
    assert "does not answer" in one_line_of(desk.type("cancel", "job"), code=1)
    desk.slurm.cancel = real
    assert state(desk) == "PENDING"
    assert desk.type("cancel", "job").stdout == f"cancelled job {job_id} of run job\n"
    assert state(desk) == "CANCELLED"


def test_a_member_of_an_array_of_runs_is_cancelled_alone_and_segments_all_together(desk):
    run, job_id = submitted(desk)
    desk.slurm.put(replace(desk.slurm.job(job_id), job_id="7_3", comment=str(run.path)))
    add_act(run, desk.disk, desk.clock.time(), "submit", job_id="7_3")
    desk.type("cancel", "job")
    assert desk.slurm.cancelled[-1].job_id == "7_3"
    job = read_job(run.job_json)
    segments = job.model_copy(update={"slurm": job.slurm.model_copy(update={"array": "1-4%1"})})
    run.job_json.write_bytes(to_json(segments.model_dump(mode="json", exclude_none=True)))
    desk.slurm.put(replace(desk.slurm.job(job_id), job_id="8_2", state="RUNNING", comment=str(run.path)))
    add_act(run, desk.disk, desk.clock.time(), "submit", job_id="8_1")
    desk.type("cancel", "job")
    assert desk.slurm.cancelled[-1].job_id == "8"


def test_a_run_that_is_over_is_left_alone(desk):
    run, _ = submitted(desk, state="COMPLETED")
    run.finished.write_text("{}")
    result = desk.type("cancel", "job")
    assert "FINISHED already" in result.stdout
    assert desk.slurm.cancelled == []


def test_a_run_in_somebodys_salloc_does_not_lose_them_their_allocation(desk):
    run, job_id = submitted(desk)
    add_act(run, desk.disk, desk.clock.time(), "run", job_id=job_id)
    attempted(desk, run, job_id)
    owned(desk, run, job_id, host="n1")
    line = one_line_of(desk.type("cancel", "job"))
    assert "Ctrl-C" in line
    assert f"scancel {job_id}" in line
    assert desk.slurm.cancelled == []


def test_a_run_of_this_machine_is_interrupted_twice(desk):
    code = (
        "import signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
        "print('up', flush=True)\n"
        "for _ in range(2): print(int(signal.sigwait([signal.SIGINT])), flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "up\n"
    run, _ = submitted(desk)
    add_act(run, desk.disk, desk.clock.time(), "run")
    attempted(desk, run, "")
    desk.clock.advance(psutil.Process(child.pid).create_time() + 5 - desk.clock.time())
    owned(desk, run, "", pid=child.pid)
    sleep = desk.clock.sleep
    desk.clock.sleep = lambda seconds: (time.sleep(0.2), sleep(seconds))
    result = desk.type("cancel", "job")
    assert result.exit_code == 0, result.output
    out, _ = child.communicate(timeout=20)
    assert out.split() == ["2", "2"]
