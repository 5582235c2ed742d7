"""A full preflight of a real cluster with a slow node, a hung one, a read-only folder, a slow pair: each is named, the run goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from slurmtrain.resilience.exclude import read_excluded
from slurmtrain.resilience.records import read_attempts
from tests.e2e.bad_nodes import read_only_on, slow_link, slow_node
from tests.e2e.real_run import SLURMTRAIN, Bench, make_bench
from tests.fixtures_slurm import SlurmCluster, devcluster, need_slurm, start

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.long]
SLOW, HUNG, SEALED, PAIR = "n2", "n3", "n4", ("n5", "n6")
NODES = 8
GO = "while [ ! -e go ]; do sleep 0.1; done\n"
"""The job begins when the fault is there."""
NODE_CHECK_TIMEOUT_S = 120
"""Of the site devcluster."""


@pytest.fixture(scope="module")
def eight(tmp_path_factory) -> Iterator[SlurmCluster]:
    need_slurm()
    folder = tmp_path_factory.mktemp("eight", numbered=True) / "c"
    try:
        yield start(folder, "--nodes", str(NODES))
    finally:
        devcluster("down", "--dir", str(folder))


@pytest.fixture(scope="module")
def bench(eight, tmp_path_factory) -> Bench:
    return make_bench(eight, tmp_path_factory.mktemp("faults"), 20)


def preflight(bench: Bench, *options: str, times: int = 1, node_hangs: str = "", timeout_s: float = 300) -> list[dict[str, Any]]:
    """What `slurmtrain preflight --json` says on an allocation of all nodes, one time after another."""
    said, script = bench.root / "said.jsonl", bench.root / "preflight.sh"
    said.unlink(missing_ok=True)
    argv = " ".join([str(SLURMTRAIN), "preflight", "--site", "devcluster", "--root", str(bench.root), "--fresh", "--json", *options])
    script.write_text(f"#!/bin/sh\n{GO}for i in $(seq {times}); do {argv} >>{said}; done\nexit 0\n")
    job = bench.cluster.sbatch(
        f"-N{NODES}", "--no-kill", "--exclusive", "-t", "60", "-o", bench.root / "preflight.out", script, cwd=bench.root
    )
    bench.cluster.wait_job(job, "RUNNING")
    if node_hangs:
        bench.cluster.hang(node_hangs)
    (bench.root / "go").touch()
    try:
        bench.cluster.wait_gone(job, timeout_s)
    finally:
        (bench.root / "go").unlink()
        if node_hangs:
            bench.cluster.restore(node_hangs)
    lines = said.read_text().splitlines() if said.exists() else []
    assert len(lines) == times, (bench.root / "preflight.out").read_text()[-2000:]
    return [json.loads(line) for line in lines]


def out(one: dict[str, Any]) -> set[str]:
    """Nodes that may not start."""
    return {node["node"] for node in one["nodes"] if not node["ok"]}


def test_each_bad_node_is_named_and_the_run_starts_on_the_others(bench, eight):
    shape = ("-N", "2", "--spares", "6", "--gpus-per-node", "1", "--set", "parallel.tp=1")
    with ExitStack() as stack:
        stack.enter_context(read_only_on(eight, SEALED, bench.root))
        job = bench.submit("faulty", *shape, "--set", "preflight=full")
        eight.wait_job(job, "RUNNING")
        eight.hang(HUNG)
        stack.callback(eight.restore, HUNG)
        stack.enter_context(slow_node(eight, SLOW))
        stack.enter_context(slow_link(eight, *PAIR))
        bench.wait_finished("faulty", 900)
    records = read_attempts(bench.run("faulty"))
    avoided = read_excluded(bench.run("faulty").exclude_json, 0.0)
    left_out = set(avoided) | set(records[0].passed_over)
    log = bench.run("faulty").slurm_out(job).read_text()
    assert {SLOW, HUNG, SEALED} <= left_out, log
    assert len(left_out & set(PAIR)) == 1, f"of a slow pair one node stays: {log}"
    assert left_out <= {SLOW, HUNG, SEALED, *PAIR}, "no healthy node is named"
    assert len(records) == 1
    assert not left_out & set(records[0].nodes)


def test_quick_takes_ten_seconds_and_with_a_node_that_hangs_one_time_out_more(bench):
    (healthy,) = preflight(bench, "--quick")
    assert (out(healthy), healthy["seconds"] < 10.0) == (set(), True), healthy["seconds"]
    (hung,) = preflight(bench, "--quick", node_hangs=HUNG)
    assert out(hung) == {HUNG}
    assert hung["seconds"] < 10.0 + NODE_CHECK_TIMEOUT_S


def test_no_false_alarm_on_a_healthy_cluster_under_load(bench):
    """Both cores are busy with something else."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        quick = preflight(bench, "--quick", times=50, timeout_s=1500)
        full = preflight(bench, "--full", times=5, timeout_s=1500)
    finally:
        for one in busy:
            one.kill()
            one.wait()
    assert [out(one) for one in (*quick, *full)] == [set()] * 55
