"""An elastic run on a real Slurm loses a node, goes on with the other in the same job, and has two again at its next start."""

from __future__ import annotations

import pytest

from slurmtrain.resilience.records import read_attempts
from tests.e2e.real_run import STEPS, Bench, make_bench

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.long]
ELASTIC = ("--set", "recovery.elastic=true")


@pytest.fixture(scope="module")
def bench(cluster, tmp_path_factory) -> Bench:
    return make_bench(cluster, tmp_path_factory.mktemp("elastic"))


def sizes(bench: Bench, name: str) -> list[int]:
    return [len(record.nodes) for record in read_attempts(bench.run(name))]


def nodes_of(bench: Bench, job: str) -> list[str]:
    return bench.cluster.run(["scontrol", "show", "hostnames", bench.cluster.job(job)["NodeList"]]).stdout.split()


def test_two_nodes_one_and_two_again(bench, healthy_cluster):
    bench.submit("still")
    job = bench.submit("elastic", *ELASTIC)
    bench.wait_step("elastic", 15)
    victim = next(node for node in nodes_of(bench, job) if node != bench.cluster.job(job)["BatchHost"])
    healthy_cluster.fail(victim)
    bench.wait("elastic", "an attempt on one node", lambda: sizes(bench, "elastic")[-1] == 1)
    shrunk = read_attempts(bench.run("elastic"))[-1].attempt
    first = max(bench.steps("elastic"))
    bench.wait_step("elastic", first + 20, timeout_s=240)
    assert bench.status("elastic")["planned_nodes"] == 2
    assert "1 of 2 nodes" in bench.cli("status", "elastic", "--root", bench.root).stdout
    healthy_cluster.restore(victim)
    healthy_cluster.run(["scancel", "--batch", "--signal=USR2", job])
    healthy_cluster.start_requeued(job)
    bench.wait_finished("elastic", timeout_s=300)
    bench.wait_finished("still")
    assert sizes(bench, "elastic")[0] == 2
    assert 1 in sizes(bench, "elastic")
    assert sizes(bench, "elastic")[-1] == 2
    found, expected = bench.losses("elastic"), bench.losses("still")
    assert sorted(found) == sorted(expected) == list(range(1, STEPS + 1))
    assert bench.steps("elastic")[first + 5].attempt == shrunk
    for step in range(1, first + 21):
        assert found[step][0] == pytest.approx(expected[step][0], rel=1e-5), step
    for step in expected:
        assert found[step][0] == pytest.approx(expected[step][0], rel=1e-3), step


def test_a_job_starts_with_the_nodes_that_are_free(bench, healthy_cluster):
    """Five of six nodes are taken: a run of two starts on one, at once."""
    shape = ("--nodes=5", "--exclusive", "--time=10", "--output=/dev/null", "--wrap=sleep 600")
    taken = bench.cluster.run(["sbatch", "--parsable", *shape], cwd=bench.root).stdout.strip()
    try:
        bench.cluster.wait("five nodes taken", lambda: bench.cluster.job(taken)["JobState"] == "RUNNING")
        job = bench.submit("small", *ELASTIC, "--set", "training.steps=10")
        bench.wait_finished("small")
        assert sizes(bench, "small") == [1]
        assert bench.cluster.job(job)["NumNodes"] == "1"
    finally:
        bench.cluster.run(["scancel", taken])
