"""The entry point by hand: one line and a code, before torch is touched."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.mpi_world import ROOT, clean_environment


@pytest.mark.parametrize(
    ("argv", "attempt", "code", "words"),
    [([], "1", 2, "usage: python -m slurmtrain.train RUN"), (["/tmp/run"], "", 1, "SLURMTRAIN_ATTEMPT")],
)
def test_started_by_hand(argv, attempt, code, words):
    env = clean_environment({"SLURMTRAIN_ATTEMPT": attempt})
    command = [sys.executable, "-X", "importtime", "-m", "slurmtrain.train", *argv]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert done.returncode == code
    assert len(lines) == 1
    assert words in lines[0]
    assert not any(line.rstrip().endswith((" torch", " mpi4py")) for line in done.stderr.splitlines())
