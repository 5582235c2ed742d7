"""The soak on a cluster of its own: thirty faults, and a run that comes out as if there had been none."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.fixtures_slurm import ROOT, clean_environ, need_slurm

SEED = os.environ.get("SOAK_SEED", "1")
FAULTS = 30


@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.long
def test_thirty_faults_leave_no_trace():
    need_slurm()
    argv = [sys.executable, str(ROOT / "tools/bench/soak.py"), f"--seed={SEED}", f"--faults={FAULTS}", "--json", "--limit=400", "--hang=30"]
    done = subprocess.run(argv, env=clean_environ(), capture_output=True, text=True, timeout=2 * 3600, check=False)
    assert done.stdout, done.stderr[-4000:]
    told = json.loads(done.stdout)
    assert told["findings"] == [], f"seed {SEED}\n{done.stderr[-8000:]}"
    assert (len(told["rows"]), done.returncode) == (FAULTS, 0)
