"""Scripts of the user's on a real Slurm: signals to the step, a requeue by notice, scancel, and a plain DDP script whose rank is killed."""

from __future__ import annotations

import os
import re
import signal
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurmtrain.resilience.records import read_attempts
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.heartbeat import heartbeat_dir, read_beats
from slurmtrain.telemetry.reader import read_events, steps
from tests.fixtures_slurm import ROOT, SlurmCluster

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.slow]
SLURMTRAIN = Path(sys.executable).with_name("slurmtrain")
SCRIPT = """
    import os, pathlib, signal, sys, time
    rank, out, told = int(os.environ["RANK"]), pathlib.Path(sys.argv[1]), []
    signal.signal(signal.SIGUSR1, lambda *_: (out / f"usr1-{rank}-{os.environ['SLURM_PROCID']}").write_text(os.environ["MASTER_PORT"]))
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    step = max((int(path.stem) for path in out.glob("*.txt")), default=0)
    while step < int(sys.argv[2]) and not told:
        time.sleep(0.1)
        step += 1
        if rank == 0:
            print(f"step {step} loss {1 / step}", flush=True)
    if rank == 0:
        (out / "new").write_text("x")
        (out / "new").rename(out / f"{step}.txt")
"""
JOB = r"""
[run]
include = ["script.py"]
[entry]
command = ["python", "script.py", "{checkpoints}", "150"]
progress = 'step (?P<step>\d+) loss (?P<loss>\S+)'
checkpoint = 'checkpoints/(?P<step>\d+)\.txt'
steps = 150
[slurm]
gpus_per_node = 2
time = "10:00"
"""


@dataclass(frozen=True)
class Started:
    """A run and its job."""

    run: RunDir
    job: str

    def told(self) -> dict[int, float]:
        return {n: e.fields["loss"] for n, e in steps(read_events(self.run.events)).items()}

    def log(self) -> str:
        return self.run.slurm_out(self.job).read_text()


def wait_step(cluster: SlurmCluster, one: Started, step: int) -> None:
    cluster.wait(f"step {step} of {one.run.name}", lambda: max(one.told(), default=0) >= step, timeout_s=180)


@pytest.fixture(scope="module")
def started(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Started]]:
    """All runs at once."""
    root = tmp_path_factory.mktemp("scripts", numbered=True)
    (root / "script.py").write_text(textwrap.dedent(SCRIPT))
    (root / "job.toml").write_text(JOB)
    ddp = '["python", "examples/ddp.py", "--out", "{checkpoints}", "--steps", "60", "--pause", "0.1"]'
    plain = (ROOT / "examples/ddp.toml", "-N", "2", "--gpus-per-node", "1", "--set", f"entry.command={ddp}", "--set", "entry.steps=60")
    wanted = {
        "noticed": (root / "job.toml", "-N", "2"),
        "signalled": (root / "job.toml", "--set", 'entry.command=["python", "script.py", "{checkpoints}", "5000"]'),
        "killed": plain,
        "undisturbed": plain,
    }
    found: dict[str, Started] = {}
    for name, words in wanted.items():
        said = cluster.run([SLURMTRAIN, "submit", *words, "--root", root / "runs", "-J", name, "--parsable"], cwd=ROOT).stdout
        found[name] = Started(RunDir(root / "runs" / name), said.strip())
        if name == "noticed":
            wait_step(cluster, found[name], 5)
            cluster.run(["scancel", "--batch", "--signal=USR2", found[name].job])
    yield found
    cluster.run(["scancel", *(one.job for one in found.values())], check=False)


def test_signals_to_the_step_reach_the_scripts_own_processes_and_scancel_ends_them(cluster, started):
    """C28."""
    one = started["signalled"]
    wait_step(cluster, one, 5)
    listed = cluster.run(["squeue", "-s", "-h", "-j", one.job, "-o", "%i %j"]).stdout.splitlines()
    (step,) = [line.split()[0] for line in listed if line.split()[1].startswith("0001-")]
    cluster.run(["scancel", "--signal=USR1", step])
    cluster.wait("USR1 at both ranks", lambda: len(list(one.run.checkpoints.glob("usr1-*"))) == 2)
    ports = {path.read_text() for path in one.run.checkpoints.glob("usr1-*")}
    assert len(ports) == 1
    assert one.told()
    cluster.run(["scancel", one.job])
    assert cluster.wait_job(one.job)["JobState"] == "CANCELLED"
    (record,) = read_attempts(one.run)
    assert (record.outcome.kind, record.outcome.signal) == ("requeue", "TERM"), one.log()
    assert record.outcome.last_durable_step == record.outcome.step, "it was not let save"


def test_a_plain_ddp_script_comes_back_from_a_kill_and_ends_as_undisturbed(cluster, started):
    one, other = started["killed"], started["undisturbed"]
    wait_step(cluster, one, 25)
    node = read_attempts(one.run)[0].nodes[1]
    os.kill(read_beats(heartbeat_dir(one.run.path, 1, node))[1].pid, signal.SIGKILL)
    for started_one in (one, other):
        cluster.wait(f"{started_one.run.name} finished", started_one.run.finished.exists, timeout_s=240)
    first, second = read_attempts(one.run)
    assert (first.outcome.kind, first.outcome.rank, first.outcome.category) == ("failed", 1, "rank_crash"), one.log()
    assert second.outcome.kind == "finished"
    assert (first.job_id, first.restart_count) == (second.job_id, second.restart_count), "it was not in place"
    ends = {re.findall(r"^step 60 loss (\S+)$", text, re.MULTILINE)[-1] for text in map(_printed, (one.run, other.run))}
    assert len(ends) == 1


def test_a_notice_lets_it_save_and_the_requeued_job_goes_on_from_there(cluster, started):
    one = started["noticed"]
    cluster.wait("the requeued job's end", one.run.finished.exists, timeout_s=240)
    first, second = read_attempts(one.run)
    assert (first.outcome.kind, first.outcome.category, second.outcome.kind) == ("requeue", "time_limit", "finished"), one.log()
    assert [(record.job_id, record.restart_count) for record in (first, second)] == [(one.job, 0), (one.job, 1)]
    assert one.told() == {n: 1 / n for n in range(1, 151)}
    made = [e.fields["step"] for e in read_events(one.run.events) if e.kind == "step"]
    assert made == list(range(1, 151)), "something was done twice, or left out"


def _printed(run: RunDir) -> str:
    return "\n".join(path.read_text() for path in sorted(run.path.glob("attempts/*/node-*.log")))
