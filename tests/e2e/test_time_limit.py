"""Acceptance: a job whose limit is shorter than its work saves, requeues and finishes over several jobs; nothing is trained twice."""

from __future__ import annotations

import json

import pytest

from slurmtrain.rundir import RunDir
from tests.e2e.real_run import make_bench

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.long]
STEPS = 2500


def exits_of(run: RunDir, attempt: int) -> set[tuple[str, int]]:
    """(kind, step) of every rank's record."""
    records = [json.loads(path.read_text()) for path in run.attempt(attempt).exit_dir.iterdir()]
    return {(record["kind"], record["step"]) for record in records}


def test_a_limit_of_three_minutes_takes_several_jobs_and_trains_every_step_once(healthy_cluster, tmp_path):
    bench = make_bench(healthy_cluster, tmp_path, STEPS)
    job = bench.submit("short-limit", "-t", "3", "--set", "checkpoint.every_steps=1000000")
    bench.wait_finished("short-limit", timeout_s=1500)
    run = bench.run("short-limit")
    lines = [json.loads(line) for line in run.event_file(0).read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "step"] == list(range(1, STEPS + 1))
    attempts = run.attempt_numbers()
    assert len(attempts) >= 2
    for attempt in attempts[:-1]:
        ends = exits_of(run, attempt)
        assert len(ends) == 1, "ranks stopped at different steps"
        assert next(iter(ends))[0] == "stopped"
    status = bench.status("short-limit")
    assert (status["state"], status["job_id"]) == ("FINISHED", job)
