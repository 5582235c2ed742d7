"""Ranks that are killed while a save is under way: their writers bring it to an end, or leave nothing, and are gone soon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import newest_verified
from tests.checkpoint.arrays import wrong_tensors
from tests.checkpoint.doors import until
from tests.checkpoint.staging import gone, names

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def killed_ranks(run, ranks, what="begin", orphan_s=0.5):
    """Writers' pids and the gate that holds them, once their ranks have been killed. `orphan_s`: they wait so long for one another."""
    gate = run.path / "gate"
    argv = [sys.executable, "-m", "tests.checkpoint.orphan_maker", str(run.path), str(ranks), str(gate), what, str(orphan_s)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT) as program:
        try:
            pids = json.loads(program.stdout.readline())
            if what == "begin":
                until(gate.with_suffix(".here").exists)
        finally:
            program.kill()
    yield pids, gate
    gate.touch()


def owned_by(run, attempt):
    run.owner_json.write_text(json.dumps({"job_id": "7", "restart_count": 0, "attempt": attempt, "host": "h", "pid": 1, "t": 0.0}))


def test_all_writers_live_and_the_save_is_brought_to_its_end(tmp_path):
    run = RunDir(tmp_path)
    owned_by(run, 1)
    with killed_ranks(run, 2) as (pids, gate):
        assert not any(map(gone, pids))
        gate.touch()
        until(lambda: all(map(gone, pids)))
    assert names(run) == ["step-00000010"]
    assert wrong_tensors(newest_verified(run.checkpoints)) == []


def test_nothing_is_published_when_another_attempt_has_come(tmp_path):
    run = RunDir(tmp_path)
    owned_by(run, 1)
    with killed_ranks(run, 2) as (pids, gate):
        owned_by(run, 2)
        gate.touch()
        until(lambda: all(map(gone, pids)))
    assert names(run) == []


def test_a_writer_that_waits_for_one_that_is_gone_gives_up_soon(tmp_path):
    run = RunDir(tmp_path)
    with killed_ranks(run, 2) as (pids, gate):
        os.kill(pids[1], signal.SIGKILL)
        until(lambda: gone(pids[1]))
        gate.touch()
        until(lambda: gone(pids[0]), 10)
    assert names(run) == []


def test_a_writer_whose_committing_one_is_gone_gives_up_soon(tmp_path):
    run = RunDir(tmp_path)
    with killed_ranks(run, 2) as (pids, gate):
        os.kill(pids[0], signal.SIGKILL)
        until(lambda: gone(pids[0]))
        gate.touch()
        until(lambda: gone(pids[1]), 10)
    assert all(name.endswith(".tmp") for name in names(run)), "nothing is published; the next owner sweeps the folder"


def test_an_idle_writer_goes_with_its_rank(tmp_path):
    with killed_ranks(RunDir(tmp_path), 2, "idle") as (pids, _):
        until(lambda: all(map(gone, pids)), 10)
    assert names(RunDir(tmp_path)) == []
