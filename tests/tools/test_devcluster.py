"""tools/devcluster: a real cluster comes up, runs jobs, loses nodes, comes back and leaves nothing behind."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slurm


def test_a_job_runs(cluster, tmp_path):
    job = cluster.sbatch("-N2", "--wrap", "srun -N2 -n2 hostname", "-o", "out.txt", cwd=tmp_path)
    cluster.wait_job(job)
    assert len((tmp_path / "out.txt").read_text().split()) == 2
