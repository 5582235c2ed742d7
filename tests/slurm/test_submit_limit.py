"""C58 on a real Slurm with accounting: more jobs than the account may have submitted at once; none is lost, none doubled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmtrain.clock import SystemClock
from slurmtrain.errors import SlurmError
from slurmtrain.shell import SystemShell
from slurmtrain.slurm import cli_client
from slurmtrain.slurm.cli_client import CliSlurm
from tests.fixtures_slurm import SlurmCluster, devcluster, need_slurm, start

pytestmark = [pytest.mark.slurm, pytest.mark.long]


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[SlurmCluster]:
    """A cluster of two nodes on which a user may have two jobs."""
    need_slurm()
    folder = tmp_path / "c"
    try:
        cluster = start(folder, "--nodes", "2", "--gpus", "1", "--accounting")
        cluster.run(["sacctmgr", "-i", "modify", "user", "root", "set", "MaxSubmitJobs=2"])
        yield cluster
    finally:
        devcluster("down", "--dir", str(folder))


def job_file(folder: Path, seconds: int) -> Path:
    path = folder / f"sleep-{seconds}.sh"
    path.write_text(f'#!/bin/bash\nsleep {seconds}\necho "$SLURM_JOB_ID" >>{folder}/ran\n')
    return path


def test_five_jobs_at_a_limit_of_two(limited, tmp_path, monkeypatch):
    said: list[str] = []
    slurm = CliSlurm(SystemShell(), SystemClock(), limited.environ, cache_dir=tmp_path / "cache", say=said.append)
    script, options = job_file(tmp_path, 2), ["--output=/dev/null", "--nodes=1"]
    ids = [slurm.submit(script, options=options) for _ in range(5)]
    assert len(set(ids)) == 5
    assert any("again in" in line for line in said), "the limit was never met"
    ran = tmp_path / "ran"
    limited.wait("all five", lambda: ran.exists() and len(ran.read_text().split()) >= 5, 60)
    limited.wait("an empty queue", lambda: not limited.queue(), 30)
    assert sorted(ran.read_text().split(), key=int) == ids

    monkeypatch.setattr(cli_client, "SUBMIT_PAUSES_S", (0.5, 0.5))
    held = [slurm.submit(job_file(tmp_path, 300), options=options) for _ in range(2)]
    with pytest.raises(SlurmError, match=r"AssocMaxSubmitJobLimit, still so after 1 s: nothing was submitted"):
        slurm.submit(script, options=options)
    assert sorted(line.split()[0] for line in limited.queue().splitlines()) == sorted(held)
