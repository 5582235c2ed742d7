"""`slurmtrain logs`: which file is shown, and that following ends with the run."""

from __future__ import annotations

import os

import pytest

from slurmtrain.resilience.records import Outcome
from tests.cli.desk import Desk, one_line_of
from tests.cli.ran import attempted, submitted


@pytest.fixture
def desk(tmp_path) -> Desk:
    return Desk(tmp_path)


def shown(desk: Desk, *words: str) -> str:
    result = desk.type("logs", "job", *words)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_newest_jobs_lines(desk):
    run, _ = submitted(desk)
    for job, when in (("1", 100), ("2", 200)):
        run.slurm_out(job).write_text(f"job {job}\n")
        os.utime(run.slurm_out(job), (when, when))
    assert shown(desk) == "job 2\n"


def test_an_attempts_ranks_each_log_with_its_name(desk):
    run, job_id = submitted(desk)
    attempted(desk, run, job_id, number=1)
    attempted(desk, run, job_id, number=2)
    text = "==> node-000.log <==\nranks of n1 in attempt 1\n==> node-001.log <==\nranks of n2 in attempt 1\n"
    assert shown(desk, "--attempt", "1") == text


def test_a_rank_is_found_by_its_node_whatever_the_order_of_the_world(desk):
    run, job_id = submitted(desk)
    attempted(desk, run, job_id)
    assert shown(desk, "--rank", "0") == "ranks of n2 in attempt 1\n", "the world begins with n2 here, Slurm's logs with n1"
    assert shown(desk, "--rank", "7") == "ranks of n1 in attempt 1\n"


def test_a_ranks_own_log_holds_its_error_and_comes_first(desk):
    run, job_id = submitted(desk)
    attempted(desk, run, job_id)
    run.attempt(1).rank_log(0).write_text("Traceback ...\nValueError: bad token\n")
    assert shown(desk, "--rank", "0").splitlines() == [
        "==> rank-00000.log <==", "Traceback ...", "ValueError: bad token", "==> node-001.log <==", "ranks of n2 in attempt 1",
    ]  # fmt: skip


def test_nothing_printed_yet_is_one_line(desk):
    run, job_id = submitted(desk)
    assert "printed nothing yet; it is RUNNING: starting" in one_line_of(desk.type("logs", "job"))
    assert "no attempt was made yet" in one_line_of(desk.type("logs", "job", "--rank", "0"))
    attempted(desk, run, job_id)
    assert "no attempt 9: there are 1" in one_line_of(desk.type("logs", "job", "--attempt", "9"))
    assert "no rank 99: there are 0 to 7" in one_line_of(desk.type("logs", "job", "--rank", "99"))


def test_a_follower_reads_why_a_run_waits(desk):
    _, job_id = submitted(desk, state="PENDING")
    desk.slurm.change(job_id, reason="PartitionConfig")
    desk.clock.at(30.0, lambda: desk.slurm.change(job_id, state="CANCELLED"))
    said = desk.type("logs", "-f", "job").stderr.splitlines()
    assert len(said) == 2, "told once, then the end"
    assert "run job is PENDING: will not start as it is (PartitionConfig)" in said[0]


def test_following_ends_with_the_run_and_shows_a_later_jobs_file_too(desk):
    run, job_id = submitted(desk)
    attempted(desk, run, job_id)
    out = run.slurm_out(job_id)
    out.write_text("first\n")

    def more(path, text: str) -> None:
        with open(path, "a") as file:
            file.write(text)

    desk.clock.at(3.0, lambda: more(out, "second\n"))
    desk.clock.at(6.0, lambda: more(run.slurm_out("99"), "another job\n"))
    desk.clock.at(9.0, lambda: attempted(desk, run, job_id, steps=range(0), outcome=Outcome("failed", "rank 3 code 7")))
    desk.clock.at(9.0, lambda: desk.slurm.change(job_id, state="FAILED"))
    result = desk.type("logs", "-f", "job")
    assert result.exit_code == 0
    assert result.stdout == "first\nsecond\n==> slurm-99.out <==\nanother job\n"
    assert result.stderr == "run job is FAILED: rank 3 code 7\n"


def test_text_that_is_not_utf8_does_not_hurt(desk):
    run, _ = submitted(desk)
    run.slurm_out("1").write_bytes(b"caf\xe9\n")
    assert shown(desk) == "caf\ufffd\n"
