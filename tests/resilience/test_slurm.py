"""The supervisor on a real Slurm, with the tiny trainer: what Slurm does to it, and what it asks of Slurm."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurmtrain.resilience.records import read_attempt, read_attempts
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.reader import read_events
from tests.fixtures_slurm import ROOT, SlurmCluster
from tests.resilience.runs import make_run
from tests.resilience.stage import ONCE

pytestmark = pytest.mark.slurm
SCRIPT = Path(__file__).with_name("batch.sh")
LAST = 600


def submit(cluster: SlurmCluster, run: RunDir, *options: str, nodes: int = 2, gpus: int = 2) -> str:
    shape = (f"--nodes={nodes}", f"--ntasks-per-node={gpus}", "--exclusive", "--requeue", "--open-mode=append", "--time=5")
    return cluster.sbatch(
        *shape, f"--output={run.path}/slurm-%j.out", f"--comment={run.path}", *options, SCRIPT, sys.executable, run.path, cwd=ROOT
    )


def steps_of(run: RunDir, attempt: int | None = None) -> list[int]:
    return [e.fields["step"] for e in read_events(run.events) if e.kind == "step" and attempt in {None, e.attempt}]


def wait_for_step(cluster: SlurmCluster, run: RunDir, step: int) -> None:
    cluster.wait(f"step {step}", lambda: any(done >= step for done in steps_of(run)))


def outcome(run: RunDir, attempt: int = 1):
    return read_attempt(run, attempt).outcome


@dataclass(frozen=True)
class Started:
    run: RunDir
    job: str


@pytest.fixture(scope="module")
def started(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Started]]:
    """All runs at once, on six nodes of their own: most of their time is waiting for Slurm, and one of the nodes dies."""
    root = tmp_path_factory.mktemp("a root", numbered=True)
    long = {"steps": 5000, "step_s": 0.1, "save_every": 10_000}
    wanted = {
        "dead": (2, {**long, "save_every": 5}),
        "limit": (1, {**long, "deadline": False}),
        "noticed": (2, long),
        "scancelled": (1, long),
        "seven": (2, {**long, "faults": [{"rank": 3, "step": 3, "do": "exit 7"}]}),
    }
    found: dict[str, Started] = {}
    for name, (nodes, behaviour) in wanted.items():
        run = make_run(root / name, launcher="srun", nodes=nodes, behaviour=behaviour, recovery=ONCE if name == "seven" else None)
        found[name] = Started(run, submit(cluster, run, nodes=nodes))
    wait_for_step(cluster, found["dead"].run, 7)
    for name in ("dead", "noticed"):  # later attempts are short; the first one lasts until it is disturbed, however busy the machine is
        wait_for_step(cluster, found[name].run, 1)
        (found[name].run.path / "behaviour.json").write_text(json.dumps({"steps": LAST, "step_s": 0.005, "save_every": 100}))
    lost = read_attempt(found["dead"].run, 1).nodes[-1]
    cluster.fail(lost)
    wait_for_step(cluster, found["limit"].run, 1)
    cluster.run(["scontrol", "update", f"JobId={found['limit'].job}", "EndTime=now"])
    yield found
    cluster.run(["scancel", *(one.job for one in found.values())], check=False)
    cluster.restore(lost)


def test_usr2_and_term_close_together_save_requeue_once_and_the_run_finishes(cluster, started):
    """C2: two signals, one requeue, no traceback. C38: the log of the first attempt stays."""
    run, job = started["noticed"].run, started["noticed"].job
    wait_for_step(cluster, run, 3)
    cluster.run(["scancel", "--batch", "--signal=TERM", job])
    time.sleep(0.05)
    cluster.run(["scancel", "--batch", "--signal=USR2", job])
    cluster.start_requeued(job)
    shown = cluster.wait_job(job)
    log = run.slurm_out(job).read_text()
    assert (shown["JobState"], shown["Restarts"], shown["ExitCode"]) == ("COMPLETED", "1", "0:0"), f"{shown}\n{log}"
    assert "Traceback" not in log
    assert [(r.outcome.kind, r.outcome.category) for r in read_attempts(run)] == [("requeue", "time_limit"), ("finished", "finished")]
    assert [r.restart_count for r in read_attempts(run)] == [0, 1]
    assert steps_of(run) == list(range(1, LAST + 1)), "something was trained twice, or left out"
    assert log.index("attempt 1 of") < log.index("attempt 2 of"), "the first attempt's lines are gone"
    assert run.attempt(1).node_log(0).read_text()


def test_scancel_does_not_come_back(cluster, started):
    run, job = started["scancelled"].run, started["scancelled"].job
    wait_for_step(cluster, run, 2)
    cluster.run(["scancel", job])
    shown = cluster.wait_job(job)
    assert (shown["JobState"], shown["Restarts"]) == ("CANCELLED", "0")
    ended = outcome(run)
    assert (ended.kind, ended.signal, ended.category) == ("requeue", "TERM", "cancelled")
    assert ended.last_durable_step == ended.step, "not saved within KillWait"


def test_rank_3_exits_7_in_a_barrier(cluster, started):
    run, job = started["seven"].run, started["seven"].job
    cluster.wait("the end of the run", run.exit_code.exists)
    began = [e.t for e in read_events(run.events) if e.kind == "step"][-1]
    ended = outcome(run)
    assert ended.t_end - began < 30
    assert run.exit_code.read_text() == "93\n"
    assert cluster.wait_gone(job) in {"FAILED", ""}
    found = (ended.kind, ended.category, ended.rank, ended.node)
    assert found == ("failed", "rank_crash", 3, read_attempt(run, 1).nodes[1]), run.slurm_out(job).read_text()
    assert "rank 3 code 7" in ended.cause


def test_only_term_at_the_time_limit_saves_and_requeues(cluster, started):
    run, job = started["limit"].run, started["limit"].job
    cluster.wait("a requeue", lambda: cluster.job(job).get("Restarts") == "1", timeout_s=90)
    ended = outcome(run)
    assert (ended.kind, ended.signal, ended.category) == ("requeue", "TERM", "time_limit")
    assert ended.last_durable_step == ended.step


def test_a_dead_node_is_told_from_a_fault_and_the_job_comes_back_by_slurms_own_requeue(cluster, started):
    run, job = started["dead"].run, started["dead"].job
    cluster.wait("the end of the run", run.finished.exists, timeout_s=150)
    log = run.slurm_out(job).read_text()
    lost = read_attempt(run, 1).nodes[-1]
    assert cluster.wait_gone(job) in {"COMPLETED", ""}
    assert [r.restart_count for r in read_attempts(run)] == [0, 1], log
    assert (outcome(run).kind, outcome(run).category, outcome(run).node) == ("node_failure", "node_failure", lost), log
    assert lost not in read_attempt(run, 2).nodes
    first, second = steps_of(run, 1), steps_of(run, 2)
    assert second == list(range(second[0], LAST + 1))
    assert second[0] % 5 == 1
    assert second[0] <= first[-1] + 1
