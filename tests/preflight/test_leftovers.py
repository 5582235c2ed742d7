"""Segments of killed MPI starts go, those of living ones stay; a start that would meet one lives."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurmtrain.config.site import SiteConfig
from slurmtrain.preflight.leftovers import remove_leftovers, remove_memory_of_the_dead, unused_segments
from slurmtrain.preflight.request import Request
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.heartbeat import run_memory
from tests.fakes.clock import FakeClock
from tests.mpi_world import ROOT

MPI = "from mpi4py import MPI; print('size', MPI.COMM_WORLD.allreduce(1))"


@pytest.fixture
def shm(tmp_path) -> Path:
    for name in ("mpich_shm_dead_0", "mpich_shm_live_0", "other"):
        (tmp_path / name).write_bytes(bytes(4096))
    return tmp_path


def test_what_nobody_has_mapped_is_removed_and_the_rest_stays(shm):
    with open(shm / "mpich_shm_live_0", "r+b") as file, mmap.mmap(file.fileno(), 0):
        assert remove_leftovers(FakeClock(), shm=shm) == [shm / "mpich_shm_dead_0"]
    assert sorted(p.name for p in shm.iterdir()) == ["mpich_shm_live_0", "other"]


def test_a_segment_made_anew_between_two_looks_stays(shm):
    class Remakes(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            old = shm / "mpich_shm_dead_0"
            (shm / "new").write_bytes(bytes(4096))
            (shm / "new").replace(old)

    assert shm / "mpich_shm_dead_0" not in remove_leftovers(Remakes(), shm=shm)


def test_segments_of_others_are_not_ours(shm, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert unused_segments(shm, Path("/proc")) == {}


def test_a_runs_memory_goes_when_no_process_of_the_run_is_left(tmp_path):
    clock = FakeClock()
    runs = {name: tmp_path / "runs" / name for name in ("dead", "living", "young")}
    for name, run in runs.items():
        beat = run_memory(run, tmp_path) / "n1" / "a0001" / "rank-00000"
        beat.parent.mkdir(parents=True)
        beat.write_bytes(bytes(128))
        for path in (beat, *beat.parents[:3]):
            os.utime(path, times=(clock.time(), clock.time() - (10 if name == "young" else 100)))
    argv = [sys.executable, "-c", "input()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, env={**os.environ, "SLURMTRAIN_RUN": str(runs["living"])}) as living:
        assert remove_memory_of_the_dead(clock, memory=tmp_path) == [run_memory(runs["dead"], tmp_path)]
        living.communicate(b"\n")
    assert [run_memory(runs[name], tmp_path).exists() for name in runs] == [False, True, True]
    assert remove_memory_of_the_dead(clock, memory=tmp_path) == [run_memory(runs["living"], tmp_path)]


@pytest.mark.slurm
def test_a_start_that_would_meet_a_dead_starts_segment_lives(cluster, tmp_path):
    """The mechanism itself: MPICH's name for a step is learnt from the step, a segment of that name is left, and the step runs again."""
    run = RunDir(tmp_path / "run")
    run.create()
    run.attempt(1).create()
    attempt = run.attempt(1)
    attempt.nonce.write_text("word")
    site = SiteConfig.model_validate({"name": "here", "device": "cpu", "node": {"gpus": 1}})
    attempt.request.write_bytes(Request(1.0, str(attempt.nodes_dir), "word", str(attempt.nonce), (), site).to_json())
    script = tmp_path / "job.sh"
    script.write_text(f"""#!/bin/bash
cd {ROOT}
if [ -z "$SLURM_RESTART_COUNT" ]; then
  srun -n2 --mpi=pmi2 python -c "
from mpi4py import MPI
import os
if MPI.COMM_WORLD.rank == 0:
    name = next(l.split(maxsplit=5)[5] for l in open('/proc/self/maps') if 'mpich_shm' in l).split()[0]
    open('{tmp_path}/name', 'w').write(name)
MPI.COMM_WORLD.barrier()"
  head -c 4000000 /dev/urandom > "$(cat {tmp_path}/name)"
  scontrol requeue $SLURM_JOB_ID
  sleep 60
fi
python -m slurmtrain.preflight.node {attempt.request}
srun -n2 --mpi=pmi2 python -c "{MPI}"
""")
    job = cluster.sbatch("-N1", "-n2", "--requeue", "--open-mode=append", f"--output={tmp_path}/out", script, cwd=tmp_path)
    cluster.start_requeued(job)
    shown = cluster.wait_job(job)
    assert (shown["JobState"], shown["Restarts"]) == ("COMPLETED", "1"), (tmp_path / "out").read_text()
    assert "size 2" in (tmp_path / "out").read_text()
