"""A run whose nodes keep its checkpoints: a node lost, it goes on from the copies, bit for bit; where they are gone, from the run folder,
and says so. Attempts end in the middle of a step; in the long tests all ranks are killed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from slurmtrain.atomic import SystemDisk
from slurmtrain.clock import SystemClock
from slurmtrain.config.job import JobConfig
from slurmtrain.config.site import SitePaths
from slurmtrain.config.stored import read_plan, write_models
from slurmtrain.errors import ConfigError
from slurmtrain.fabric.plan import build_plan
from slurmtrain.rundir import RunDir
from slurmtrain.runtime.world import Standing
from slurmtrain.store.aside import set_aside
from slurmtrain.store.listing import steps_present
from slurmtrain.store.local import forget_after, make_rules, newest_local, newest_step
from slurmtrain.store.scratch import held, local_dir
from slurmtrain.telemetry.sink import EventSink
from slurmtrain.train.loop import Loop
from slurmtrain.train.session import open_session
from slurmtrain.train.stopping import StopFlag
from tests.checkpoint.staging import server_of
from tests.mpi_world import gloo_group, run_command, run_world
from tests.parallel.layouts import world_of
from tests.steps.conformance import until
from tests.train.faulty import doomed, nan
from tests.train.runs import Run, make_data, make_job, make_site
from tests.train.several import tensors_of

pytestmark = pytest.mark.mpi

OPTIMIZER = {"lr": 1e-3, "min_lr": 1e-3, "warmup_steps": 0}
LAST = 12


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def make_nodes(folder, data, *, steps=LAST, per_node=1, scratch="scratch/$SLURMTRAIN_NODE", recovery=None, **checkpoint) -> Run:
    """A run on two emulated nodes, each with a scratch folder of its own."""
    plain = make_job(data, nodes=2, gpus=per_node, dp_mode="fsdp", training={"steps": steps}, optimizer=OPTIMIZER).model_dump()
    job = JobConfig.model_validate({**plain, "checkpoint": checkpoint, "recovery": recovery or {}})
    site = make_site().model_copy(update={"paths": SitePaths(scratch=folder / scratch)})
    run = Run(RunDir(folder / "run"), 2, per_node)
    run.run.create()
    write_models(run.run, job, site, build_plan(job, site), SystemDisk())
    return run


@dataclass(frozen=True)
class Life:
    """An attempt on these nodes. `dies`: every rank fails after so many steps, when no save is under way; `lose`, `back_to`: before."""

    run: RunDir
    number: int
    nodes: tuple[str, ...]
    dies: int | None = None
    lose: tuple[Path, ...] = ()
    back_to: int | None = None


class KilledError(Exception):
    """The end of an attempt."""


def live(lives: list[Life]):
    """In a world of ranks: one life after another; how each ended."""
    torch.set_num_threads(1)
    gloo_group()
    return [_live(life) for life in lives]


def _live(life: Life) -> str:
    rank, clock = dist.get_rank(), SystemClock()
    if rank == 0:
        for path in life.lose:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if life.back_to is not None:
            forget_after(life.run, life.back_to)
            for step in steps_present(life.run.checkpoints):
                if step > life.back_to:
                    set_aside(life.run, step, "back")
        life.run.attempt(life.number).create()
    dist.barrier()
    size = dist.get_world_size() // len(life.nodes)
    place = {"node": life.nodes[rank // size], "node_index": rank // size, "local_rank": rank % size, "local_size": size}
    world = replace(world_of(read_plan(life.run.plan_json)), nodes=life.nodes, attempt=life.number, timeout=timedelta(seconds=60), **place)
    os.environ["SLURMTRAIN_NODE"] = world.node
    torch.manual_seed(1000 * life.number + rank)
    try:
        session = open_session(life.run, world, StopFlag(), clock, server_of(rank))
    except ConfigError as error:
        return f"refused: {error}"
    finally:
        dist.barrier()
    step = session.step

    def mortal(number, *more, **how):
        if number > life.dies:
            session.saver.wait()
            raise KilledError
        return step(number, *more, **how)

    if life.dies is not None:
        object.__setattr__(session, "step", mortal)
    sink = EventSink(life.run.event_file(0), clock, life.number, rank) if rank == 0 else None
    try:
        return str(Loop(session, Standing(rank, world.node), sink, clock).run().step)
    except KilledError:
        return "died"
    finally:
        dist.barrier()


def disk(run: Run, node: str) -> Path:
    return run.run.path.parent / "scratch" / node


def left(run: Run) -> list[str]:
    """What lies on the nodes' disks, below the folders of this user."""
    return sorted(path.name for path in (run.run.path.parent / "scratch").glob("*/slurmtrain-*/checkpoints/*"))


@pytest.fixture(scope="module")
def lives(data, tmp_path_factory):
    """All runs of the quick tests, by one world of two ranks: names to runs, and how their attempts ended."""
    base = tmp_path_factory.mktemp("lives")
    runs = {
        "undisturbed": make_nodes(base / "undisturbed", data, every_steps=100),
        "copies": make_nodes(base / "copies", data, local=True, every_steps=3, flush_every=100),
        "flushed": make_nodes(base / "flushed", data, local=True, every_steps=3, flush_every=2, mode="async"),
        "back": make_nodes(base / "back", data, local=True, every_steps=2, flush_every=2, mode="async"),
        "bad": make_nodes(base / "bad", data, recovery={"numerics": {"rollbacks": 1}}, local=True, every_steps=3, flush_every=2),
        "nothing": make_nodes(base / "nothing", data, local=True, every_steps=3, flush_every=100),
        "unusable": make_nodes(base / "unusable", data, local=True, every_steps=2, flush_every=3),
        "together": make_nodes(base / "together", data, local=True, scratch="scratch"),
    }
    make_rules(runs["flushed"].run)
    doomed(runs["bad"].run, nan(11, rank=1))
    (base / "unusable" / "scratch").mkdir()
    disk(runs["unusable"], "n2").touch()
    flushed = local_dir(disk(runs["flushed"], "n2"), runs["flushed"].run, make_rules(runs["flushed"].run))
    gone = [flushed.checkpoint(step) / "rank-00000.h5" for step in (6, 9)]
    here = {name: run.run for name, run in runs.items()}
    plan = [
        Life(here["undisturbed"], 1, ("n1", "n2")),
        Life(here["copies"], 1, ("n1", "n2"), dies=8),
        Life(here["copies"], 2, ("n1", "n3"), lose=(disk(runs["copies"], "n2"),)),
        Life(here["flushed"], 1, ("n1", "n2"), dies=10),
        Life(here["flushed"], 2, ("n4", "n2"), lose=(disk(runs["flushed"], "n1"), *gone)),
        Life(here["back"], 1, ("n1", "n2"), dies=9),
        Life(here["back"], 2, ("n1", "n2"), back_to=5),
        Life(here["bad"], 1, ("n1", "n2")),
        Life(here["nothing"], 1, ("n1", "n2"), dies=4),
        Life(here["nothing"], 2, ("n3", "n2"), lose=(disk(runs["nothing"], "n1"), disk(runs["nothing"], "n2"))),
        Life(here["unusable"], 1, ("n1", "n2")),
        Life(here["together"], 1, ("n1", "n2")),
    ]
    results = run_world(live, plan, nodes=2, tasks_per_node=1, timeout_s=200).results
    assert results[0] == results[1]
    ends = {}
    for life, end in zip(plan, results[0], strict=True):
        ends.setdefault(life.run.path.parent.name, []).append(end)
    return runs, ends


def test_back_to_the_run_folder_in_an_attempt(lives):
    """From step 11: what nodes have of step 9 goes, and is saved anew."""
    runs, ends = lives
    run = runs["bad"]
    assert ends["bad"] == ["12"]
    assert [(e["step"], e["to"]) for e in run.events("rollback")] == [(11, 6)]
    assert [e["step"] for e in run.events("save") if e.get("tier") == "local"] == [3, 6, 9, 9]
    assert run.steps()[10:] == [one for one in runs["undisturbed"].steps() if one[0] >= 7]
    assert_same_state(run, runs["undisturbed"], LAST)


def same_as_undisturbed(runs, run, attempt, first):
    assert run.steps(attempt) == [one for one in runs["undisturbed"].steps() if one[0] >= first]
    assert_same_state(run, runs["undisturbed"], LAST)


def assert_same_state(run, other, step):
    found, expected = tensors_of(run.run, step), tensors_of(other.run, step)
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


def test_after_the_loss_of_a_node_the_copies_are_enough(lives):
    runs, ends = lives
    run = runs["copies"]
    assert ends["copies"] == ["died", str(LAST)]
    assert [(e["step"], e.get("tier")) for e in run.events("save", 1)] == [(3, "local"), (6, "local")]
    (load,) = run.events("load", 2)
    assert (load["step"], load["tier"], load["passed_over"]) == (6, "local", [])
    same_as_undisturbed(runs, run, 2, 7)


def test_a_finished_run_is_in_the_run_folder_and_leaves_nothing_on_its_nodes(lives):
    runs, _ = lives
    assert steps_present(runs["copies"].run.checkpoints) == [LAST]
    assert left(runs["copies"]) == []
    assert newest_local(runs["copies"].run) is None
    assert newest_step(runs["copies"].run) == LAST


def test_where_both_copies_are_gone_the_run_folder_has_the_flushed_one(lives):
    runs, ends = lives
    run = runs["flushed"]
    assert ends["flushed"] == ["died", str(LAST)]
    (load,) = run.events("load", 2)
    assert (load["step"], load["tier"]) == (6, "shared")
    assert load["passed_over"] == [[step, "local: 1 of its 2 files on no node of this attempt"] for step in (9, 6)]
    same_as_undisturbed(runs, run, 2, 7)


def test_who_goes_back_leaves_the_nodes_later_ones_behind(lives):
    runs, _ = lives
    (load,) = runs["back"].events("load", 2)
    assert (load["step"], load["tier"], load["passed_over"]) == (4, "shared", []), "the nodes have kept 6 and 8"
    same_as_undisturbed(runs, runs["back"], 2, 5)


def test_where_nothing_is_left_the_run_begins_anew_and_says_so(lives):
    runs, ends = lives
    run = runs["nothing"]
    assert ends["nothing"] == ["died", str(LAST)]
    assert run.events("load", 2) == []
    same_as_undisturbed(runs, run, 2, 1)


def test_a_disk_that_cannot_be_used_costs_the_tier_alone(lives):
    runs, ends = lives
    run = runs["unusable"]
    assert ends["unusable"] == [str(LAST)]
    assert [(e["step"], e.get("tier")) for e in run.events("save")] == [(6, None), (12, None)], "as often as it would have been flushed"
    (note,) = [e["text"] for e in run.events("note") if "checkpoint.local" in e["text"]]
    assert "rank 1 on n2" in note
    assert "Not a directory" in note
    assert "this attempt saves to the run folder alone" in note


def test_two_nodes_with_one_folder_are_refused(lives):
    _, ends = lives
    (end,) = ends["together"]
    assert end.startswith("refused: site: paths.scratch")
    assert "is the same folder on n1 and n2" in end


class Program:
    """The whole program under mpiexec, on two nodes of two ranks."""

    def __init__(self, folder, data, **checkpoint):
        self.folder, self.data, self.checkpoint = folder, data, checkpoint
        self.run = make_nodes(folder, data, steps=100_000, per_node=2, **checkpoint)

    def attempt(self, number, names, *, check=True):
        folder = self.run.run.attempt(number)
        folder.create()
        start = {"v": 1, "attempt": number, "nodes": list(names), "tasks_per_node": 2}
        folder.attempt_json.write_text(json.dumps(start))
        command = [sys.executable, "-m", "slurmtrain.train", str(self.run.run.path)]
        return run_command(
            command, nodes=names, tasks_per_node=2, timeout_s=240, env={"SLURMTRAIN_ATTEMPT": str(number)}, check=check, cleanup=False
        )

    def killed(self, number, names, step):
        """An attempt all of whose ranks are killed when a checkpoint of this step or a later one is on the nodes' disks."""
        with ThreadPoolExecutor(1) as pool:
            attempt = pool.submit(self.attempt, number, names, check=False)
            until(lambda: self.told() >= step or attempt.done(), limit_s=120)
            assert not attempt.done(), attempt.result().out
            for process in self.processes():
                os.kill(process.pid, signal.SIGKILL)
            attempt.result()
        _, alive = psutil.wait_procs(self.processes(), timeout=20)
        assert alive == []

    def told(self):
        newest = newest_local(self.run.run)
        return newest.step if newest is not None else 0

    def processes(self):
        found = psutil.process_iter(["cmdline"])
        return [p for p in found if "slurmtrain.train" in (p.info["cmdline"] or []) and str(self.run.run.path) in p.info["cmdline"]]

    def there(self, node):
        """What this node has, newest first."""
        return held(local_dir(disk(self.run, node), self.run.run, make_rules(self.run.run)))

    def end_at(self, steps):
        make_nodes(self.folder, self.data, steps=steps, per_node=2, **self.checkpoint)


@pytest.mark.long
@pytest.mark.parametrize("writers", [1, 2])
def test_all_ranks_killed_and_a_node_lost(tmp_path, data, writers):
    program = Program(tmp_path / "a", data, local=True, every_steps=3, flush_every=100_000, mode="async", writers_per_node=writers)
    program.killed(1, ("n1", "n2"), 6)
    newest = program.there("n1")[0]
    assert len(newest.files) == newest.count == 2 * writers
    shutil.rmtree(disk(program.run, "n2"))
    last = newest.step + 7
    program.end_at(last)
    program.attempt(2, ("n1", "n3"))
    (load,) = program.run.events("load", 2)
    assert (load["step"], load["tier"], load["passed_over"]) == (newest.step, "local", [])
    assert steps_present(program.run.run.checkpoints) == [last]
    assert left(program.run) == []
    undisturbed = Program(tmp_path / "b", data, every_steps=100_000)
    undisturbed.end_at(last)
    undisturbed.attempt(1, ("n1", "n2"))
    assert program.run.steps(2) == undisturbed.run.steps()[newest.step :]
    assert_same_state(program.run, undisturbed.run, last)


@pytest.mark.long
def test_all_ranks_killed_and_both_copies_lost(tmp_path, data):
    program = Program(tmp_path / "a", data, local=True, every_steps=3, flush_every=2)
    program.killed(1, ("n1", "n2"), 9)
    shutil.rmtree(disk(program.run, "n1"))
    lost = [one.step for one in program.there("n2")]
    for path in disk(program.run, "n2").glob("*/*/*/step-*/rank-00001.h5"):
        path.unlink()
    shared = steps_present(program.run.run.checkpoints)[-1]
    program.end_at(shared + 5)
    program.attempt(2, ("n4", "n2"))
    (load,) = program.run.events("load", 2)
    assert (load["step"], load["tier"]) == (shared, "shared")
    newer = [step for step in lost if step >= shared]
    assert load["passed_over"] == [[step, "local: 1 of its 4 files on no node of this attempt"] for step in newer]
