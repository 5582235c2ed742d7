"""Agents on a real Slurm: killed ones come back, a lost batch host costs one requeue, and a person's word wins."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import psutil
import pytest

from slurmtrain.resilience.records import read_attempt, read_attempts
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.history import read_acts
from tests.fixtures_slurm import SlurmCluster
from tests.resilience.runs import make_run, site_of
from tests.resilience.test_slurm import Started, steps_of, submit, wait_for_step

pytestmark = [pytest.mark.slurm, pytest.mark.long]
SILENCE_S = 12


def site(gpus: int = 2):
    timeouts = {"collective_timeout_s": 60, "start_timeout_s": 60, "node_check_timeout_s": 60, "exit_grace_s": 3}
    return site_of("srun", gpus, timeouts={**timeouts, "supervisor_silence_s": SILENCE_S})


@pytest.fixture(scope="module")
def started(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Started]]:
    """Two runs at once on six nodes; the batch host of one of them dies."""
    root = tmp_path_factory.mktemp("agents", numbered=True)
    found: dict[str, Started] = {}
    often = {"steps": 150, "step_s": 0.1, "save_every": 10}
    lost = make_run(root / "lost", launcher="srun", nodes=2, spares=1, site=site(), behaviour=often)
    found["lost"] = Started(lost, submit(cluster, lost, "--no-kill", nodes=3))
    watched = make_run(root / "watched", launcher="srun", nodes=2, site=site(), behaviour={"steps": 600, "step_s": 0.1, "save_every": 100})
    found["watched"] = Started(watched, submit(cluster, watched, nodes=2))
    wait_for_step(cluster, lost, 12)
    host = cluster.job(found["lost"].job)["BatchHost"]
    cluster.fail(host)
    yield found
    cluster.run(["scancel", *(one.job for one in found.values())], check=False)
    cluster.restore(host)


def agents_of(run: RunDir, node: str = "") -> list[psutil.Process]:
    """Agents of a run (on a node), srun left out."""
    found = []
    for process in psutil.process_iter():
        try:
            line, environ = process.cmdline(), process.environ()
        except (psutil.Error, OSError):
            continue
        ours = "slurmtrain.resilience.agent" in line and str(run.path) in line and not line[0].endswith("srun")
        if ours and node in {"", environ.get("SLURMD_NODENAME")}:
            found.append(process)
    return found


def sruns_of(run: RunDir) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
        except (psutil.Error, OSError):
            continue
        if line[:1] == ["srun"] and "slurmtrain.resilience.agent" in line and str(run.path) in line:
            found.append(process)
    return found


def processes_of(run: RunDir) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SLURMTRAIN_RUN") == str(run.path) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
        except (psutil.Error, OSError):
            continue
    return found


def files_of_an_attempt(*, checked: int, nodes: int, ranks: int) -> int:
    """attempt.json, claim.json, nonce and the launcher's two logs; an answer and a log of each node's check; a log of each node; an exit
    record of each rank.
    """
    return 5 + 2 * checked + nodes + ranks


def test_files_and_writes_on_the_shared_folder(cluster, started):
    """At 1,000 nodes of 8 GPUs, on paper: 11,005 files an attempt; while it trains two files grow, whatever the number of nodes."""
    assert files_of_an_attempt(checked=1000, nodes=1000, ranks=8000) == 11_005
    run, job = started["watched"].run, started["watched"].job
    wait_for_step(cluster, run, 20)
    before = state(run)
    wait_for_step(cluster, run, steps_of(run)[-1] + 30)
    changed = {name for name, seen in state(run).items() if before.get(name) != seen}
    assert changed - {"attempts/0001"} == {"events/node-000.jsonl", f"slurm-{job}.out"}
    agents = [name for name in before if "agent" in name]
    assert agents == ["agents.log"]


def state(run: RunDir) -> dict[str, tuple[int, int]]:
    """Times and sizes, without the files that only the tiny trainer has."""
    found = {}
    for path in run.path.rglob("*"):
        with contextlib.suppress(OSError):
            if path.name.startswith(("pid-", "step", "agreed", "at-")):
                continue
            found[str(path.relative_to(run.path))] = (path.stat().st_mtime_ns, path.stat().st_size)
    return found


def test_agents_that_are_killed_come_back_and_the_attempt_goes_on(cluster, started):
    """C46: one agent, then the launcher of all of them."""
    run, job = started["watched"].run, started["watched"].job
    wait_for_step(cluster, run, 3)
    log = run.slurm_out(job)
    nodes = read_attempt(run, 1).nodes
    cluster.wait("agents", lambda: all(agents_of(run, node) for node in nodes))
    (victim,) = agents_of(run, nodes[1])
    victim.kill()
    cluster.wait("a new agent", lambda: f"node {nodes[1]} is watched again" in log.read_text())
    before = {process.pid for process in agents_of(run)}
    for srun in sruns_of(run):
        srun.send_signal(signal.SIGKILL)
    cluster.wait("new agents", lambda: log.read_text().count("is watched again") >= 3)
    cluster.wait("the old ones are gone", lambda: not before & {process.pid for process in agents_of(run)})
    shown = cluster.wait_job(job, timeout_s=120)
    assert (shown["JobState"], shown["Restarts"]) == ("COMPLETED", "0"), log.read_text()
    assert [record.outcome.kind for record in read_attempts(run)] == ["finished"]
    assert steps_of(run) == list(range(1, 601))
    files = [name for name in state(run) if name.startswith("attempts/0001/") and (run.path / name).is_file()]
    assert len(files) == files_of_an_attempt(checked=2, nodes=2, ranks=4), sorted(files)
    cluster.wait("nothing left", lambda: not processes_of(run), timeout_s=10)


def test_a_batch_host_that_is_lost_costs_one_requeue_and_the_run_goes_on(cluster, started):
    run, job = started["lost"].run, started["lost"].job
    cluster.start_requeued(job)
    shown = cluster.wait_job(job, timeout_s=120)
    log = run.slurm_out(job).read_text()
    assert (shown["JobState"], shown["Restarts"]) == ("COMPLETED", "1"), log
    first, second = read_attempts(run)
    assert (first.outcome.kind, first.outcome.category, first.outcome.node) == ("node_failure", "node_failure", first.nodes[0])
    assert second.outcome.kind == "finished"
    assert first.nodes[0] not in second.nodes
    asked = [act for act in read_acts(run) if act.what == "requeue"]
    assert len(asked) == 1
    assert "deputy" in asked[0].detail
    assert steps_of(run, 2)[0] % 10 == 1
    assert steps_of(run, 2)[-1] == 150
    cluster.wait("nothing left", lambda: not processes_of(run), timeout_s=10)
    states = cluster.run(["sinfo", "-h", "-N", "-p", "main", "-o", "%N %T"]).stdout
    assert "drain" not in states, states
