"""The payload of submitit and of the batch script: a code and a summary in every case, and no stale result."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from slurmtrain.resilience import payload
from slurmtrain.resilience.signals import NOTICE, TERM, Signals
from tests.mpi_world import clean_environment
from tests.resilience.runs import make_run


def run_module(run: Path, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "slurmtrain.resilience", str(run)]
    return subprocess.run(argv, env=clean_environment(env), capture_output=True, text=True, timeout=60, check=False)


def test_a_folder_that_is_no_run_ends_with_a_code_and_one_line(tmp_path):
    (tmp_path / "submit").mkdir()
    done = run_module(tmp_path)
    assert done.returncode == 1
    assert "job.json" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "submit/exit_code").read_text() == "1\n"


def test_a_finished_run_ends_at_once_with_0(tmp_path):
    run = make_run(tmp_path / "run")
    run.finished.write_text("{}")
    done = run_module(run.path)
    assert (done.returncode, run.exit_code.read_text()) == (0, "0\n")
    assert "nothing to do" in done.stdout


def test_a_fault_of_the_supervisor_is_a_summary_too(tmp_path, monkeypatch, capsys):
    run = make_run(tmp_path / "run")
    monkeypatch.setattr(payload, "supervise", lambda *_: 1 / 0)
    summary = payload.run(str(run.path))
    assert (summary["code"], summary["outcome"]) == (1, "failed")
    assert "ZeroDivisionError" in summary["cause"]
    assert json.dumps(summary)
    assert run.exit_code.read_text() == "1\n"
    assert "Traceback" in capsys.readouterr().err


def test_the_pickle_holds_the_run_and_nothing_else():
    assert len(pickle.dumps(partial(payload.run, "/runs/llama"))) < 300


@pytest.mark.parametrize(
    ("env", "mine"),
    [({"SLURM_JOB_ID": "12"}, "12_0"), ({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}, "7_3_0")],
)
def test_an_earlier_starts_result_of_this_job_goes_and_others_stay(tmp_path, env, mine):
    for name in (mine, "11_0", "7_4_0"):
        (tmp_path / f"{name}_result.pkl").touch()
    payload.remove_stale_result({**env, "SUBMITIT_FOLDER": str(tmp_path)})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["11_0_result.pkl", "7_4_0_result.pkl"]


def test_without_submitit_nothing_is_removed(tmp_path):
    payload.remove_stale_result({"SLURM_JOB_ID": "12"})


def test_handlers_count_and_are_put_back():
    signals = Signals(lambda: 5.0)
    before = signal.getsignal(NOTICE)
    with signals.listening((NOTICE, TERM)):
        os.kill(os.getpid(), NOTICE)
        os.kill(os.getpid(), NOTICE)
    assert signal.getsignal(NOTICE) is before
    assert (signals.count(NOTICE), signals.count(TERM), signals.since(NOTICE), signals.since(TERM)) == (2, 0, 5.0, None)


def test_a_hang_up_counts_as_term():
    signals = Signals(lambda: 5.0)
    with signals.listening_as(TERM, (signal.SIGHUP,)):
        os.kill(os.getpid(), signal.SIGHUP)
    assert signals.count(TERM) == 1
