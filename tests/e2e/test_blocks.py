"""A tensor-parallel group over two nodes: inside one NVLink block it trains, over two blocks the ranks refuse to start (Slurm 24.11)."""

from __future__ import annotations

import pytest

from tests.e2e.real_run import Bench, make_bench
from tests.fixtures_slurm import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.long]
VALUES = ("parallel.tp=8", "model.heads=8", "model.kv_heads=8", "training.steps=6")
TP_8 = tuple(f"--set={value}" for value in VALUES)


@pytest.fixture(scope="module")
def bench(block_cluster, tmp_path_factory) -> Bench:
    folder = tmp_path_factory.mktemp("blocks")
    site = (ROOT / "site_configs/devcluster.toml").read_text()
    node = 'nvlink_domain = "node"'
    assert node in site
    for name, nodes in (("true", 2), ("wrong", 4)):
        (folder / f"{name}.toml").write_text(site.replace(node, f'nvlink_domain = "block"\nblock_nodes = {nodes}'))
    return make_bench(block_cluster, folder)


def test_inside_one_block_it_trains(bench):
    bench.submit("inside", "--site", str(bench.root / "true.toml"), "--gpus-per-node", "4", *TP_8, "-w", "n1,n2")
    bench.wait_finished("inside")
    assert sorted(bench.losses("inside")) == [1, 2, 3, 4, 5, 6]


def test_over_two_blocks_the_ranks_refuse_with_the_names(bench):
    """The site file promises blocks of four nodes, the cluster has blocks of two."""
    wrong = ("--site", str(bench.root / "wrong.toml"))
    job = bench.submit("across", *wrong, "-N", "4", "--gpus-per-node", "2", *TP_8, "-w", "n[1-4]")
    shown = bench.cluster.wait_job(job, timeout_s=120)
    assert (shown["JobState"], shown["ExitCode"]) == ("FAILED", "78:0")
    status = bench.status("across")
    assert status["state"] == "FAILED"
    assert all(node in status["reason"] for node in ("n1", "n3"))
