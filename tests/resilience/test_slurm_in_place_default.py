"""Recovery in place at the timings of real sites (SlurmdTimeout 300, KillWait 30): what needs Slurm's fast word does not recover there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slurmtrain.resilience.records import read_attempt, read_attempts
from slurmtrain.rundir import RunDir
from slurmtrain.telemetry.reader import read_events
from tests.fixtures_slurm import SlurmCluster, devcluster, need_slurm, start
from tests.resilience.runs import make_run
from tests.resilience.test_slurm import Started, steps_of, submit, wait_for_step
from tests.resilience.test_slurm_in_place import processes_of

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.long]
STEPS = 120
COLD_START_S = 60.0
"""Of the tiny trainer on a machine with other things to do; SlurmdTimeout is five times that."""


@pytest.fixture(scope="module")
def site_like(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A cluster of its own: 4 nodes, default timings."""
    need_slurm()
    folder = tmp_path_factory.mktemp("default", numbered=True) / "c"
    try:
        yield start(folder, "--timings", "default", "--nodes", "4")
    finally:
        devcluster("down", "--dir", str(folder))


def begin(cluster: SlurmCluster, root, name: str, *, spares: int, **behaviour: object) -> Started:
    wanted = {"steps": STEPS, "step_s": 0.1, "save_every": 5, "children": 1, **behaviour}
    run = make_run(root / name, launcher="srun", nodes=2, spares=spares, behaviour=wanted)
    return Started(run, submit(cluster, run, "--no-kill", nodes=2 + spares))


def ended(cluster: SlurmCluster, one: Started) -> str:
    """Wait for the supervisor's end; the log. The job itself stays COMPLETING until Slurm has given the dead node up."""
    cluster.wait("the end", one.run.exit_code.exists, timeout_s=240)
    log = one.run.slurm_out(one.job).read_text()
    assert one.run.finished.exists(), log
    assert cluster.job(one.job)["Restarts"] == "0", log
    return log


def back_after_s(run: RunDir) -> float:
    """From the end of the first attempt's steps to the first step of the second."""
    times = {n: [e.t for e in read_events(run.events) if e.kind == "step" and e.attempt == n] for n in (1, 2)}
    return min(times[2]) - max(times[1])


def clean(run: RunDir) -> bool:
    return all(processes_of(run, r.attempt) == [] for r in read_attempts(run))


def test_a_dead_node_is_left_long_before_slurm_has_noticed(site_like, tmp_path):
    one = begin(site_like, tmp_path, "dead", spares=1)
    wait_for_step(site_like, one.run, 7)
    lost = read_attempt(one.run, 1).nodes[-1]
    site_like.fail(lost)
    try:
        log = ended(site_like, one)
        assert "DOWN" not in site_like.run(["scontrol", "show", "node", lost]).stdout.split("Reason")[0], "Slurm has noticed: too late"
        assert lost not in read_attempt(one.run, 2).nodes, log
        assert back_after_s(one.run) < COLD_START_S, log
        assert steps_of(one.run, 2)[-1] == STEPS
        assert clean(one.run)
    finally:
        site_like.restore(lost)
    site_like.wait("four good nodes", lambda: site_like.run(["sinfo", "-h", "-o", "%T"]).stdout.split() == ["idle"], timeout_s=120)


def test_a_spare_that_hangs_holds_nothing_up(site_like, tmp_path):
    """C44: the spare freezes, then a rank crashes, so that the frozen spare is asked with the others before the next start."""
    one = begin(site_like, tmp_path, "frozen", spares=1, faults=[{"attempt": 1, "rank": 1, "step": 40, "do": "exit 7"}])
    wait_for_step(site_like, one.run, 3)
    (spare,) = read_attempt(one.run, 1).spares
    site_like.hang(spare)
    try:
        log = ended(site_like, one)
        assert back_after_s(one.run) < COLD_START_S, log
        assert spare in read_attempt(one.run, 2).passed_over, log
        assert "DRAIN" not in site_like.run(["scontrol", "show", "node", spare]).stdout
    finally:
        site_like.restore(spare)
    site_like.wait("nothing left", lambda: clean(one.run), timeout_s=60)
