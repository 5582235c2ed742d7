"""Acceptance: a node of the running job dies; the same job comes back on healthy nodes, and the losses are those of a run that
nothing happened to, bit for bit. Likewise for a run that is told to leave, and for one that a person stops and resumes."""

from __future__ import annotations

import json

import psutil
import pytest

from tests.e2e.real_run import STEPS, Bench, make_bench

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


@pytest.fixture(scope="module")
def bench(cluster, tmp_path_factory) -> Bench:
    return make_bench(cluster, tmp_path_factory.mktemp("runs with space"))


@pytest.fixture(scope="module")
def undisturbed(bench) -> dict[int, tuple[float, float]]:
    """Losses and gradient norms of a run that nothing happened to; submitted from a shell full of another job's variables (C14, C54)."""
    poison = {
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_CPU_BIND": "map_cpu:0",
        "SLURM_MPI_TYPE": "none",
        "SBATCH_NODES": "3",
        "SBATCH_EXCLUSIVE": "1",
        "SRUN_CPUS_PER_TASK": "7",
        "SLURM_EXACT": "1",
    }
    bench.submit("undisturbed", env=poison)
    bench.wait_finished("undisturbed")
    losses = bench.losses("undisturbed")
    assert sorted(losses) == list(range(1, STEPS + 1))
    assert losses[STEPS][0] < losses[1][0] - 1
    return losses


def resumed_steps(bench: Bench, name: str) -> list[int]:
    """The step from which each later attempt went on."""
    lines = [json.loads(line) for line in bench.run(name).event_file(0).read_text().splitlines()]
    return [line["resumed_from"] for line in lines if line["kind"] == "start" and line["attempt"] > 1]


def rank_environment(bench: Bench, name: str) -> dict[str, str]:
    """The variables of a rank that trains now (C54)."""
    run = str(bench.run(name).path)
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or ()
        if "slurmtrain.train" in words and run in words:
            return process.environ()
    raise AssertionError(f"no rank of {name} runs")


def test_a_dead_node_costs_the_steps_since_the_last_checkpoint_and_nothing_else(bench, undisturbed, healthy_cluster):
    """C18: a requeue starts the run folder and loads its newest checkpoint; no payload names a step that could grow stale."""
    job = bench.submit("node-dies")
    bench.wait_step("node-dies", 25)
    victim = healthy_cluster.run(["scontrol", "show", "hostnames", healthy_cluster.job(job)["NodeList"]]).stdout.split()[-1]
    healthy_cluster.fail(victim)
    bench.wait_finished("node-dies", timeout_s=240)
    status = bench.status("node-dies")
    assert status["state"] == "FINISHED"
    assert status["job_id"] == job
    assert status["attempt"] == 2
    assert victim not in status["nodes"]
    (resumed,) = resumed_steps(bench, "node-dies")
    assert resumed >= 20
    assert bench.losses("node-dies") == undisturbed


def test_told_to_leave_it_saves_and_comes_back_and_trains_nothing_twice(bench, undisturbed, healthy_cluster):
    job = bench.submit("leaves")
    bench.wait_step("leaves", 15)
    healthy_cluster.run(["scancel", "-b", "-s", "USR2", job])
    bench.wait_finished("leaves")
    trained = [json.loads(line) for line in bench.run("leaves").event_file(0).read_text().splitlines()]
    numbers = [line["step"] for line in trained if line["kind"] == "step"]
    assert numbers == list(range(1, STEPS + 1))
    exits = [json.loads(p.read_text()) for p in sorted(bench.run("leaves").attempt(1).exit_dir.iterdir())]
    assert len(exits) == 4
    assert {(e["kind"], e["step"]) for e in exits} == {("stopped", exits[0]["step"])}
    assert resumed_steps(bench, "leaves") == [exits[0]["step"]]
    assert bench.losses("leaves") == undisturbed
    assert bench.status("leaves")["job_id"] == job


def test_stop_saves_then_resume_goes_on_and_scancel_is_final(bench, undisturbed, healthy_cluster):
    bench.submit("stopped")
    bench.wait_step("stopped", 5)
    environment = rank_environment(bench, "stopped")
    assert {k: environment.get(k) for k in "ABCD"} == {"A": "1,2", "B": "x y", "C": "64(x2)", "D": "it's $HOME"}
    bench.cli("stop", "stopped", "--root", bench.root)
    bench.wait("stopped", "stopped is STOPPED", lambda: bench.status("stopped")["state"] == "STOPPED", 60)
    durable = bench.status("stopped")["last_durable_step"]
    assert durable == max(bench.steps("stopped"))
    again = bench.submit("stopped", "--resume")
    bench.wait_step("stopped", durable + 5)
    healthy_cluster.run(["scancel", again])
    bench.wait("stopped", "stopped is CANCELLED", lambda: bench.status("stopped")["state"] == "CANCELLED", 60)
    assert healthy_cluster.job(again).get("JobState", "CANCELLED") == "CANCELLED"
    assert resumed_steps(bench, "stopped") == [durable]
    done = bench.losses("stopped")
    assert done == {step: undisturbed[step] for step in done}


def test_run_in_the_foreground_of_an_allocation(bench, undisturbed):
    argv = [
        "salloc",
        "-N2",
        "--gpus-per-node=2",
        "--ntasks-per-node=2",
        "slurmtrain",
        "run",
        bench.job,
        "--root",
        bench.root,
        "-J",
        "inside",
    ]
    poison = {"SLURM_CPU_BIND": "map_cpu:0", "SRUN_DISTRIBUTION": "arbitrary", "SLURM_MPI_TYPE": "none"}
    done = bench.cluster.run([*argv, "--set", "training.steps=12"], timeout_s=120, env=poison, cwd=bench.root)
    assert "step 12/12" in done.stdout
    assert bench.run("inside").finished.exists()
    assert sorted(bench.losses("inside")) == list(range(1, 13))
