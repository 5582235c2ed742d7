"""`slurmtrain stop`: STOP for a run that lives, out of the queue for one that waits, nothing for one that is over."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from slurmtrain.resilience.records import Outcome
from slurmtrain.telemetry.history import read_acts
from tests.cli.desk import Desk, one_line_of
from tests.cli.ran import attempted, submitted


@pytest.fixture
def desk(tmp_path) -> Desk:
    return Desk(tmp_path)


def state(desk: Desk) -> str:
    return json.loads(desk.type("status", "job", "--json").stdout)["state"]


def test_a_run_that_trains_is_asked_to_stop(desk):
    run, job_id = submitted(desk)
    attempted(desk, run, job_id)
    result = desk.type("stop", "job")
    assert result.exit_code == 0
    assert "not requeued" in result.stdout
    assert run.stop.exists()
    assert desk.slurm.cancelled == []
    assert (read_acts(run)[-1].what, read_acts(run)[-1].job_id) == ("stop", job_id)
    assert "STOP" in desk.type("status", "job").stdout


def test_where_the_folder_cannot_be_written_the_line_tells_what_ends_the_run(desk, monkeypatch):
    run, job_id = submitted(desk)
    attempted(desk, run, job_id)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "touch", refuse)
    told = one_line_of(desk.type("stop", "job"), code=1)
    assert "STOP: Read-only file system: nothing was asked; `slurmtrain cancel job` ends it" in told


def test_a_job_that_waits_is_taken_out_of_the_queue(desk):
    run, job_id = submitted(desk, state="PENDING", reason="Resources")
    result = desk.type("stop", job_id)
    assert result.exit_code == 0
    assert [c.job_id for c in desk.slurm.cancelled] == [job_id]
    assert run.stop.exists()
    assert state(desk) == "STOPPED"


def test_a_run_that_is_over_is_left_alone(desk):
    run, job_id = submitted(desk, state="FAILED")
    attempted(desk, run, job_id, outcome=Outcome("failed", "rank 3 code 7"))
    result = desk.type("stop", "job")
    assert result.exit_code == 0
    assert "FAILED already" in result.stdout
    assert not run.stop.exists()


def test_no_such_run(desk):
    assert "no run 'x'" in one_line_of(desk.type("stop", "x"))
