"""Chains and requeues on a real Slurm, with the tiny trainer: which link goes on, what Slurm is told of a job that waits."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from slurmtrain.resilience.budget import read_budget
from slurmtrain.resilience.records import read_attempt, read_attempts, read_owner
from slurmtrain.rundir import RunDir
from tests.fixtures_slurm import ROOT, SlurmCluster
from tests.resilience.runs import make_run
from tests.resilience.test_slurm import SCRIPT, steps_of, wait_for_step

pytestmark = [pytest.mark.slurm, pytest.mark.long]
CHAIN = ("--array=1-3%1", "--no-requeue")
LONG = {"steps": 5000, "step_s": 0.2, "save_every": 10_000, "deadline": False}
QUICK = {**LONG, "steps": 400, "step_s": 0.005}
"""Of later attempts: they come to the end within seconds."""
SEVEN = [{"attempt": n, "rank": 0, "step": 1, "do": "exit 7"} for n in (1, 2, 3)]


@dataclass(frozen=True)
class Started:
    run: RunDir
    job: str


def begin(cluster: SlurmCluster, root: Path, name: str, behaviour: dict[str, Any], *options: str, **recovery: Any) -> Started:
    chain = {"continuation": "chain", "links": 3} if options == CHAIN else {}
    run = make_run(root / name, launcher="srun", nodes=1, behaviour=behaviour, **chain)
    job = json.loads(run.job_json.read_text())
    run.job_json.write_text(json.dumps(job | {"recovery": job["recovery"] | recovery}))
    shape = ("--nodes=1", "--ntasks-per-node=2", "--exclusive", "--open-mode=append", "--time=5")
    log = f"--output={run.path}/slurm-{'%A_%a' if chain else '%j'}.out"
    words = (*shape, log, f"--comment={run.path}", *(options or ("--requeue",)))
    return Started(run, cluster.sbatch(*words, SCRIPT, sys.executable, run.path, cwd=ROOT))


@pytest.fixture(scope="module")
def started(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Started]]:
    """All at once: most of the time is waiting for Slurm."""
    root = tmp_path_factory.mktemp("chains", numbered=True)
    found = {
        "limit": begin(cluster, root, "limit", LONG, *CHAIN),
        "one": begin(cluster, root, "one", LONG, *CHAIN),
        "spent": begin(cluster, root, "spent", {**LONG, "faults": SEVEN}, *CHAIN, no_progress=2),
        "avoid": begin(cluster, root, "avoid", LONG),
        "step": begin(cluster, root, "step", LONG),
    }
    for name in ("limit", "avoid"):
        wait_for_step(cluster, found[name].run, 2)
        (found[name].run.path / "behaviour.json").write_text(json.dumps(QUICK))
    cluster.run(["scontrol", "update", f"JobId={found['limit'].job}_1", "EndTime=now"])
    yield found
    cluster.run(["scancel", *(one.job for one in found.values())], check=False)


def over(cluster: SlurmCluster, one: Started) -> str:
    """Wait until Slurm has nothing to do with the array any more; the code that the last link ended with."""
    gone = ["squeue", "-h", "-o", "%F"]
    cluster.wait(f"the end of array {one.job}", lambda: one.job not in cluster.run(gone).stdout.split(), timeout_s=120)
    assert one.run.slurm_out(f"{one.job}_3").exists(), "the last link has not run"
    return one.run.exit_code.read_text().strip()


def test_the_next_link_goes_on_after_the_time_limit_and_the_last_finds_nothing_to_do(cluster, started):
    """C36."""
    run, job = started["limit"].run, started["limit"].job
    assert over(cluster, started["limit"]) == "0", run.slurm_out(f"{job}_3").read_text()
    ends = [(r.job_id, r.outcome.kind, r.outcome.category) for r in read_attempts(run)]
    assert ends == [(f"{job}_1", "requeue", "time_limit"), (f"{job}_2", "finished", "finished")]
    assert steps_of(run) == list(range(1, 401)), "something was trained twice, or left out"
    assert "nothing to do" in run.slurm_out(f"{job}_3").read_text()


def test_scancel_of_one_link_ends_the_chain(cluster, started):
    run, job = started["one"].run, started["one"].job
    wait_for_step(cluster, run, 2)
    cluster.run(["scancel", f"{job}_1"])
    assert over(cluster, started["one"]) == "0"
    assert [r.outcome.category for r in read_attempts(run)] == ["cancelled"], run.slurm_out(f"{job}_2").read_text()


def test_a_spent_budget_ends_the_chain_with_a_summary(cluster, started):
    run, job = started["spent"].run, started["spent"].job
    assert over(cluster, started["spent"]) == "93", run.slurm_out(f"{job}_3").read_text()
    assert [(r.job_id, r.outcome.category) for r in read_attempts(run)] == [(f"{job}_1", "rank_crash")] * 2
    assert read_budget(run).over == "2 attempts in a row brought no newer checkpoint"
    log = run.slurm_out(f"{job}_1").read_text()
    assert log.count("tried: attempt ") == 2
    assert "rank 0 code 7" in log
    assert "the chain goes no further" in run.slurm_out(f"{job}_2").read_text()


def test_a_requeued_job_avoids_the_node_and_waits_for_slurms_begin_time(cluster, started):
    run, job = started["avoid"].run, started["avoid"].job
    bad = read_attempt(run, 1).nodes[0]
    run.exclude_json.write_text(json.dumps({"v": 1, "nodes": {bad: {"until": None, "reason": "its fan"}}}))
    cluster.run(["scancel", "--batch", "--signal=USR2", job])
    cluster.start_requeued(job)
    shown = cluster.wait_job(job, timeout_s=120)
    log = run.slurm_out(job).read_text()
    assert (shown["JobState"], shown["Restarts"], shown["ExcNodeList"]) == ("COMPLETED", "1", bad), log
    assert [r.nodes == (bad,) for r in read_attempts(run)] == [True, False]
    assert f"Slurm is told to leave out {bad}" in log


def test_a_signal_to_srun_itself_is_heard_by_the_ranks(cluster, started):
    """C28."""
    run, job = started["step"].run, started["step"].job
    wait_for_step(cluster, run, 3)
    (launcher,) = [
        p
        for p in psutil.Process(read_owner(run.owner_json).pid).children()
        if p.name() == "srun" and any("tiny" in word for word in p.cmdline())
    ]
    launcher.send_signal(signal.SIGUSR2)
    cluster.wait_job(job, timeout_s=60)
    ended = read_attempt(run, 1).outcome
    assert (ended.kind, ended.last_durable_step) == ("requeue", ended.step), run.slurm_out(job).read_text()
