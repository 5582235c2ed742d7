"""Runs of two ranks on a small file system that gets full, or read-only, or whose quota is used up, while they train.

A save that fails is told and costs nothing: the run goes on with the same bits, its old checkpoints stay, and when the disk is good
again it saves. What a checkpoint has suffered in the meantime is found when the run comes back.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from slurmtrain.atomic import SystemDisk
from slurmtrain.config.site import SiteStorage
from slurmtrain.config.stored import write_models
from slurmtrain.fabric.plan import build_plan
from slurmtrain.rundir import RunDir
from slurmtrain.store.aside import asides
from slurmtrain.store.listing import steps_present
from slurmtrain.store.verify import verify
from tests.checkpoint.stored import flip
from tests.mpi_world import run_world
from tests.train.disks import Disturbed, runs
from tests.train.runs import Run, make_data, make_site
from tests.train.several import job_of

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

LAST = 8
QUICK = [("fills", "async"), ("read-only", "async"), ("quota", "sync")]
LONG = [("full", "sync"), ("full", "async"), ("fills", "sync"), ("read-only", "sync"), ("quota", "async")]
SAYS = {
    "full": "needed, ",
    "fills": "No space left on device",
    "read-only": "Read-only file system",
    "quota": "needed, 1000 B free (says cat)",
}


def mounted(folder: Path) -> Path:
    """A file system of 8 MB."""
    folder.mkdir(parents=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True, check=False)
    if os.geteuid() != 0 or done.returncode:
        pytest.skip("no tmpfs can be mounted here")
    return folder


def made(folder: Path, data: Path, mode: str, steps: int = LAST, *, quota: Path | None = None) -> Run:
    """Its checkpoints lie on the small file system."""
    run = RunDir(folder)
    run.create()
    job = job_of(
        data, sections={"checkpoint": {"mode": mode}}, gpus=2, dp_mode="fsdp", every=2, training={"steps": steps, "micro_batch": 2}
    )
    storage = SiteStorage(quota="off") if quota is None else SiteStorage(quota_command=f"cat {quota}")
    site = make_site().model_copy(update={"storage": storage})
    plan = build_plan(job, site)
    write_models(run, job, site, plan, SystemDisk())
    return Run(run, plan.nodes, plan.gpus_per_node)


def trained(tmp: Path, cases):
    """{case: run} and the undisturbed run; after their end two of them have harm done to their checkpoints, and go on."""
    data, mounts = make_data(tmp), []
    try:
        found, attempts = {}, []
        for what, mode in (("", "sync"), *cases):
            run = made(
                tmp / f"{what}-{mode}", data, mode, quota=tmp / f"{what}-{mode}" / "checkpoints" / "quota" if what == "quota" else None
            )
            run.run.checkpoints.rmdir()
            mounts.append(mounted(run.run.checkpoints))
            (mounts[-1] / "quota").write_text("- -")
            found[what, mode] = run
            attempts.append(Disturbed(run.run.path, what, mounts[-1]))
        told = run_world(runs, attempts, timeout_s=240).results
        assert told == [[("finished", LAST)] * len(attempts)] * 2
        yield found, data
    finally:
        for mount in mounts:
            subprocess.run(["umount", "-l", mount], check=True)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    yield from trained(tmp_path_factory.mktemp("quick"), QUICK)


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    yield from trained(tmp_path_factory.mktemp("long"), LONG)


@pytest.fixture(params=[*QUICK, *(pytest.param(case, marks=pytest.mark.long) for case in LONG)], ids=lambda case: f"{case[0]}, {case[1]}")
def case(request):
    found, _ = request.getfixturevalue("quick" if request.param in QUICK else "long")
    return *request.param, found[request.param], found["", "sync"]


def test_saves_that_fail_cost_nothing_and_saves_go_on_later(case):
    what, _, run, undisturbed = case
    assert run.steps() == undisturbed.steps()
    assert [step for step, *_ in run.steps()] == list(range(1, LAST + 1))
    saved, failed = [event["step"] for event in run.events("save")], run.events("save_failed")
    assert saved == [2, 8]
    assert [(event["step"], event["durable"]) for event in failed] == [(4, 2), (6, 2)]
    assert SAYS[what] in failed[0]["error"], failed
    for event in failed:
        assert SAYS[what] in event["error"] or (what == "fills" and SAYS["full"] in event["error"]), event
        assert event["error"].startswith(f"checkpoint of step {event['step']} not saved: "), event
        assert event["error"].isprintable()
    assert what != "fills" or "/rank-0000" in failed[0]["error"], failed
    assert steps_present(run.run.checkpoints) == [2, 8]
    assert [verify(run.run.checkpoint(step)) for step in (2, 8)] == [[]] * 2
    names = {path.name for path in run.run.checkpoints.iterdir()}
    assert names <= {"step-00000002", "step-00000008", "quota", ".leases"}, "no litter"
    assert [event["step"] for event in run.events("finish")] == [LAST]


def again(run: Run, folder: Path, data: Path, mode: str) -> Run:
    """The run with more steps to make, somewhere else."""
    subprocess.run(["cp", "-r", run.run.path, folder], check=True)
    made(folder, data, mode, LAST + 2)
    return replace(run, run=RunDir(folder))


def test_harmed_ones_are_passed_over_and_where_all_are_harmed_the_run_stops(quick, tmp_path):
    found, data = quick
    some, every = (again(found["", "sync"], tmp_path / name, data, "sync") for name in ("some", "every"))
    for run, steps in ((some, (LAST,)), (every, steps_present(every.run.checkpoints))):
        for step in steps:
            flip(run.run.checkpoint(step) / "rank-00001.h5", 20_000)
    before = sorted(path.name for path in every.run.checkpoints.iterdir())
    results = run_world(runs, [Disturbed(some.run.path, number=2), Disturbed(every.run.path, number=2)], timeout_s=120).results
    assert [one[0] for one in results] == [("finished", LAST + 2)] * 2
    (load,), (aside,) = some.events("load", 2), some.events("aside", 2)
    assert (load["step"], [step for step, _ in load["passed_over"]], aside["step"]) == (LAST - 2, [LAST], LAST)
    assert "/step-00000008/rank-00001.h5: chunk 0 " in aside["why"]
    assert [one.step for one in asides(some.run)] == [LAST]
    assert some.steps(2)[0] == found["", "sync"].steps()[LAST - 2]
    assert verify(some.run.checkpoint(LAST)) == []
    (kind, words), other = results[0][1], results[1][1]
    assert other == (kind, words)
    assert kind == "CorruptCheckpointError"
    assert words.startswith(f"{every.run.checkpoints}: no checkpoint verifies: mend one, or move the folder away to start anew (step 8: ")
    assert words.isprintable()
    assert sorted(path.name for path in every.run.checkpoints.iterdir() if path.name != ".leases") == [
        one for one in before if one != ".leases"
    ]
    assert every.steps(2) == []
