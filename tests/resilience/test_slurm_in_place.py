"""Recovery in place on a real Slurm, with the tiny trainer: nodes, launchers and supervisors are killed for real."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

import psutil
import pytest

from slurmtrain.report.folder import read_story
from slurmtrain.report.goodput import accounts
from slurmtrain.resilience.records import read_attempt, read_attempts
from slurmtrain.rundir import RunDir
from tests.fixtures_slurm import SlurmCluster
from tests.resilience.runs import make_run
from tests.resilience.test_slurm import Started, steps_of, submit, wait_for_step

pytestmark = pytest.mark.slurm
STEPS = 60
LONGER = 150
"""Of runs that something is done to from outside: they must still train then."""


def processes_of(run: RunDir, attempt: int) -> list[str]:
    """Command lines of ranks and their children that belong to an attempt of the run, and run."""
    found = []
    for process in psutil.process_iter():
        try:
            environ = process.environ()
            mine = environ.get("SLURMTRAIN_ATTEMPT") == str(attempt) and str(run.path) in environ.get("PYTHONPATH", "")
            if mine and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except (psutil.Error, OSError):
            continue
    return found


def pid_of(words: str, run: RunDir) -> int:
    """The one process whose command line has the words and the run."""
    (found,) = [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if str(run.path) in " ".join(process.info["cmdline"] or ()) and words in " ".join(process.info["cmdline"] or ())
    ]
    return found


def srun_of_ranks(run: RunDir) -> list[int]:
    """The srun whose command has the pattern of the ranks' logs, and its shepherd."""
    found = [
        process.pid
        for process in psutil.process_iter(["name", "cmdline"])
        if process.info["name"] == "srun" and f"--output={run.attempt(1).path}/node-%3n.log" in (process.info["cmdline"] or ())
    ]
    assert found
    return found


def finished_in_place(cluster: SlurmCluster, started: Started, steps: int = STEPS) -> str:
    """Wait for the job's end; its log. It was one job, and every step was trained from the checkpoint on."""
    run, job = started.run, started.job
    cluster.wait("the end of the run", run.exit_code.exists, timeout_s=90)
    log = run.slurm_out(job).read_text()
    assert run.exit_code.read_text() == "0\n", log
    assert cluster.wait_gone(job) in {"COMPLETED", ""}
    assert [(r.attempt, r.job_id, r.restart_count) for r in read_attempts(run)] == [(1, job, 0), (2, job, 0)], log
    last = steps_of(run, 2)
    assert last == list(range(last[0], steps + 1)), log
    assert last[0] % 5 == 1 or last[0] == steps_of(run, 1)[-1] + 1, "not from a checkpoint"
    assert "Traceback" not in log
    told = accounts(read_story(run))
    assert sum(told.parts_us.values()) == told.wall_us
    assert (told.attempts, told.faults, told.parts_us["queue"]) == (2, 1, 0)
    assert told.kept_steps == steps
    assert told.redone_steps == len(steps_of(run, 1)) + len(last) - steps
    return log


@pytest.fixture(scope="module")
def started(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Started]]:
    """All at once, on the six nodes."""
    root = tmp_path_factory.mktemp("in place", numbered=True)
    behaviour = {"steps": STEPS, "step_s": 0.1, "save_every": 5}
    longer = {**behaviour, "steps": LONGER}
    wanted = {
        "node": (2, 1, ("--no-kill",), longer),
        "crash": (1, 0, (), {**behaviour, "children": 2, "faults": [{"attempt": 1, "rank": 1, "step": 7, "do": "exit 7"}]}),
        "supervisor": (1, 0, (), longer),
        "srun": (1, 0, (), longer),
    }
    found: dict[str, Started] = {}
    for name, (nodes, spares, options, what) in wanted.items():
        run = make_run(root / name, launcher="srun", nodes=nodes, spares=spares, behaviour=what)
        found[name] = Started(run, submit(cluster, run, *options, nodes=nodes + spares))
    wait_for_step(cluster, found["supervisor"].run, 3)
    os.kill(pid_of("tests.resilience.batch", found["supervisor"].run), signal.SIGKILL)
    wait_for_step(cluster, found["srun"].run, 3)
    for pid in srun_of_ranks(found["srun"].run):
        os.kill(pid, signal.SIGKILL)
    wait_for_step(cluster, found["node"].run, 7)
    lost = read_attempt(found["node"].run, 1).nodes[-1]
    cluster.fail(lost)
    yield found
    cluster.run(["scancel", *(one.job for one in found.values())], check=False)
    cluster.restore(lost)


def test_a_rank_that_exits_with_a_code_is_tried_again_at_once(cluster, started):
    log = finished_in_place(cluster, started["crash"])
    first = read_attempt(started["crash"].run, 1).outcome
    assert (first.category, first.rank) == ("rank_crash", 1), log
    assert processes_of(started["crash"].run, 1) == processes_of(started["crash"].run, 2) == [], "C4: children that ignore TERM"


def test_a_killed_srun_leaves_no_ranks_and_the_run_goes_on(cluster, started):
    """C64."""
    run = started["srun"].run
    log = finished_in_place(cluster, started["srun"], LONGER)
    first = read_attempt(run, 1).outcome
    assert (first.kind, first.category) == ("failed", "launch_failure"), log
    assert "ended by SIGKILL" in first.cause
    assert processes_of(run, 1) == []


def test_a_dead_node_is_left_and_the_spare_steps_in(cluster, started):
    """The node is killed with all that runs on it; Slurm has not noticed yet when the ranks train again."""
    run = started["node"].run
    log = finished_in_place(cluster, started["node"], LONGER)
    first, second = read_attempt(run, 1), read_attempt(run, 2)
    lost, (spare,) = first.nodes[-1], first.spares
    assert (first.outcome.kind, first.outcome.node) == ("node_failure", lost), log
    assert set(second.nodes) == {first.nodes[0], spare}, log
    assert lost not in second.spares
    assert re.search(rf"node {lost} is avoided for 24 h: node failure", log)
    assert f"{spare} in for {lost}" in log
    assert processes_of(run, 1) == processes_of(run, 2) == []
    states = cluster.run(["sinfo", "-h", "-N", "-o", "%N %T"]).stdout
    assert "drain" not in states


def test_a_killed_supervisor_is_started_again_and_goes_on(cluster, started):
    run = started["supervisor"].run
    log = finished_in_place(cluster, started["supervisor"], LONGER)
    first = read_attempt(run, 1).outcome
    assert (first.kind, "ended by the next one" in first.cause) == ("failed", True), log
    assert "ended by signal 9: it is started again (1 of 3)" in log
    assert steps_of(run) == list(range(1, LONGER + 1)), "TERM lets ranks save: nothing was to be trained twice"
    assert processes_of(run, 1) == []
