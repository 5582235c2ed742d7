"""Runs of two nodes that go on with one, and with two again: the same samples, losses within reduction noise of the undisturbed run."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache

import pytest
import torch
import torch.distributed as dist

from slurmtrain.atomic import SystemDisk
from slurmtrain.clock import SystemClock
from slurmtrain.config.job import JobConfig
from slurmtrain.config.site import SitePaths
from slurmtrain.config.stored import plan_of_attempt, read_job, read_plan, read_site, write_models
from slurmtrain.fabric.plan import build_plan
from slurmtrain.fabric.resize import resize
from slurmtrain.rundir import RunDir
from slurmtrain.runtime.world import Standing
from slurmtrain.telemetry.sink import EventSink
from slurmtrain.train.__main__ import saves_beside
from slurmtrain.train.loop import Loop
from slurmtrain.train.session import open_session
from slurmtrain.train.stopping import StopFlag
from tests.checkpoint.staging import server_of
from tests.mpi_world import gloo_group, run_world
from tests.parallel.layouts import world_of
from tests.train.runs import Run, make_data, make_job, make_site

pytestmark = pytest.mark.mpi

OPTIMIZER = {"lr": 1e-3, "min_lr": 1e-4, "warmup_steps": 3}
LAST = 20
PARTS = ((1, 7), (8, 14), (15, 20))
"""First and last step of each attempt: on two nodes, one, two."""
DISKS = "nodes' own disks"
RAMP = {"start": 8, "increment": 8, "samples": 60}
KINDS = {
    "ddp": {"batch": 8},
    "shards": {"batch": 8, "dp_mode": "fsdp", "dp_shard": 2, "checkpoint": {"mode": "async", "every_steps": 3}},
    "tp and a ramp": {"batch": 24, "tp": 2, "micro": 4, "ramp": RAMP},
    "pipeline": {"batch": 8, "pp": 2, "dp_mode": "zero1"},
    DISKS: {
        "batch": 24,
        "tp": 2,
        "micro": 2,
        "ramp": RAMP,
        "dp_mode": "zero1",
        "checkpoint": {"local": True, "every_steps": 2, "flush_every": 2},
    },
}
QUICK = ("tp and a ramp",)


@dataclass(frozen=True)
class Life:
    """An attempt of a run on these nodes up to step `last`, where it is asked to stop; or (`dies`) ends in the next one on all ranks."""

    run: RunDir
    number: int
    nodes: tuple[str, ...]
    last: int
    dies: bool = False


class KilledError(Exception):
    """The end of an attempt."""


def live(lives: list[Life]):
    """In a world of ranks: attempts of several runs; how each ended."""
    torch.set_num_threads(1)
    gloo_group()
    return [_live(life) for life in lives]


def _live(life: Life) -> tuple[str, int]:
    rank, clock, flag = dist.get_rank(), SystemClock(), StopFlag()
    if rank == 0:
        life.run.attempt(life.number).create()
    dist.barrier()
    plan = plan_of_attempt(life.run, life.number)
    size = plan.gpus_per_node
    place = {"node": life.nodes[rank // size], "node_index": rank // size, "local_rank": rank % size, "local_size": size}
    world = replace(world_of(plan), nodes=life.nodes, attempt=life.number, timeout=timedelta(seconds=60), **place)
    os.environ["SLURMTRAIN_NODE"] = world.node
    beside = saves_beside(life.run)
    session = open_session(life.run, world, flag, clock, server_of(rank) if beside else None)
    step = session.step

    def stopping(number, *more, **named):
        if number > life.last:
            session.saver.wait()
            raise KilledError
        if number == life.last < LAST and not life.dies:
            flag.given.add("requeue")
        return step(number, *more, **named)

    object.__setattr__(session, "step", stopping)
    sink = EventSink(life.run.event_file(0), clock, life.number, rank) if rank == 0 else None
    try:
        ending = Loop(session, Standing(rank, world.node), sink, clock).run()
    except KilledError:
        return "died", life.last
    finally:
        dist.barrier()
    return ending.kind, ending.step


def make(folder, data, *, batch, micro=1, ramp=None, checkpoint=None, **parallel) -> RunDir:
    """A run of two nodes of two ranks, whose second attempt has one node."""
    training = {"steps": LAST, "global_batch": batch, "micro_batch": micro, "batch_ramp": ramp}
    plain = make_job(data, model={"layers": 2}, nodes=2, gpus=2, training=training, optimizer=OPTIMIZER, **parallel).model_dump()
    sections = {"checkpoint": {"every_steps": 100, **(checkpoint or {})}, "recovery": {"elastic": True}}
    job = JobConfig.model_validate({**plain, **sections})
    site = make_site().model_copy(update={"paths": SitePaths(scratch=folder / "scratch/$SLURMTRAIN_NODE")})
    run = RunDir(folder / "run")
    run.create()
    plan = build_plan(job, site)
    write_models(run, job, site, plan, SystemDisk())
    small = resize(plan, job, site, 1)
    assert small is not None
    assert (small.world, small.dp) == (2, plan.dp // 2)
    run.attempt(2).create()
    run.attempt(2).plan_json.write_text(small.model_dump_json())
    return run


@pytest.fixture(scope="module")
def resized(tmp_path_factory):
    """The quick kinds, or the others where one of those is asked for: the resized runs, and their undisturbed likes."""

    @cache
    def played(*, quick: bool):
        return play(tmp_path_factory.mktemp("resized"), [name for name in KINDS if (name in QUICK) == quick])

    return lambda name: played(quick=name in QUICK)[name]


def play(base, names):
    """In three worlds one after another."""
    data = make_data(base)
    still = {name: make(base / f"{name}-still", data, **KINDS[name]) for name in names}
    moved = {name: make(base / name, data, **KINDS[name]) for name in names}
    for number, (_, last) in enumerate(PARTS, 1):
        nodes = ("n1",) if number == 2 else ("n1", "n2")
        lives = [Life(run, number, nodes, last, dies=name == DISKS) for name, run in moved.items()]
        lives += [Life(run, 1, nodes, LAST) for run in still.values()] if number == 1 else []
        ends = run_world(live, lives, nodes=len(nodes), tasks_per_node=2, timeout_s=200).results[0]
        words = ["finished" if last == LAST else "died" if name == DISKS else "stopped" for name in names]
        assert ends[: len(names)] == [(word, last) for word in words]
    return {name: (Run(moved[name], 2, 2), Run(still[name], 2, 2)) for name in names}


ALL = [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in KINDS]


@pytest.mark.parametrize("name", ALL)
def test_the_losses_are_those_of_the_undisturbed_run(resized, name):
    run, still = resized(name)
    expected = {event["step"]: event for event in still.events("step")}
    found = {event["step"]: event for number, _ in enumerate(PARTS, 1) for event in run.events("step", number)}
    assert list(found) == list(expected) == list(range(1, LAST + 1))
    for step, event in found.items():
        assert event["loss"] == pytest.approx(expected[step]["loss"], rel=1e-5), step
        assert event["grad_norm"] == pytest.approx(expected[step]["grad_norm"], rel=1e-3), step
        assert (event["tokens"], event["lr"]) == (expected[step]["tokens"], expected[step]["lr"]), step


@pytest.mark.parametrize("name", ALL)
def test_each_attempt_has_its_layout(resized, name):
    run, _ = resized(name)
    plans = [plan_of_attempt(run.run, number) for number in (1, 2, 3)]
    starts = [run.events("start", number)[0] for number in (1, 2, 3)]
    assert [(start["world"], start["layout"]["dp"]) for start in starts] == [(plan.world, plan.dp) for plan in plans]
    assert [plan.world for plan in plans] == [4, 2, 4]
    assert plans[0] == plans[2] == read_plan(run.run.plan_json)


@pytest.mark.long
def test_a_run_on_the_nodes_own_disks_goes_on_from_what_one_node_has(resized):
    """Step 6 lies on two nodes, one of which is left; step 14 on that one alone, whose files the other is brought."""
    run, _ = resized(DISKS)
    assert [(load["step"], load["tier"]) for number in (2, 3) for load in run.events("load", number)] == [(6, "local"), (14, "local")]
    assert "no partner" in run.events("note", 2)[-1]["text"]
    assert not any("no partner" in note["text"] for number in (1, 3) for note in run.events("note", number))


def test_the_job_and_the_site_are_as_before(resized):
    """Another layout is no change of the job that a curve would have to tell."""
    run, _ = resized("tp and a ramp")
    assert run.events("change") == []
    plan = read_plan(run.run.plan_json)
    assert resize(plan, read_job(run.run.job_json), read_site(run.run.site_json), 1).micro_batch == 4
