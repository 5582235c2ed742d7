"""Saves to the nodes' own disks and to the run folder: each tier ends for itself, and what fails in one goes to the other next time."""

from __future__ import annotations

import errno
import os
import signal
import threading

import pytest

from slurmtrain.checkpoint.local_save import LocalSaves
from slurmtrain.checkpoint.staged import AsyncSaver
from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import newest_verified, steps_present
from slurmtrain.store.scratch import held
from slurmtrain.store.verify import read_manifest, sum_problems
from tests.checkpoint.arrays import header, source, terms, wrong_tensors
from tests.checkpoint.doors import faulty_door, held_door, until
from tests.checkpoint.nodes import folder_of, ground
from tests.checkpoint.staging import end_servers, gone, server_of, writer_pid
from tests.fakes.thread_group import run_ranks

NODES = ("a", "b")


@pytest.fixture(autouse=True, scope="module")
def _servers():
    yield
    end_servers()


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "run")
    run.create()
    return run


class Rank:
    """A rank with a saver of both tiers; `heard`: outcomes as (step, tier, ok)."""

    def __init__(self, run, tmp_path, group, *, door="", waits=False, **more):
        self.group = group
        here = ground(group, run, tmp_path, NODES)
        self.local = LocalSaves(here, lambda: group.part((group.size,)))
        own = door.get(group.rank, "") if isinstance(door, dict) else door
        self.saver = AsyncSaver(
            terms(run, **more), group, server=server_of(group.rank), door=own, orphan_s=1.0, local=self.local, waits=waits
        )

    def begin(self, step, *, shared=False):
        assert self.saver.begin(header(step, self.group.size), source(step, self.group.rank, self.group.size), shared=shared) is None

    def save(self, step, *, shared=False):
        self.begin(step, shared=shared)
        return self.heard()

    def heard(self):
        self.outcomes = self.saver.wait()
        return [(one.step, one.tier, one.ok) for one in self.outcomes]


def ranks(run, tmp_path, body, size=2, **more):
    def one(group):
        rank = Rank(run, tmp_path, group, **more)
        try:
            return body(rank)
        finally:
            rank.saver.close()

    results = run_ranks(size, one)
    for result in results:
        if isinstance(result, Exception):
            raise result
    assert all(result == results[0] for result in results)
    return results[0]


def there(run, tmp_path):
    """Steps on each node, and in the run folder, all of whose bytes are right."""
    nodes = []
    for node in NODES:
        local = folder_of(run, tmp_path, node)
        assert not [path.name for path in local.path.iterdir() if path.name.startswith(".")]
        for one in held(local):
            assert sum_problems(local.checkpoint(one.step), read_manifest(local.checkpoint(one.step)), sorted(one.files)) == []
            assert len(one.files) == one.count, "of two nodes each has all"
        nodes.append(sorted(one.step for one in held(local)))
    assert not [path.name for path in run.checkpoints.iterdir() if path.name.startswith(".step")]
    return (*nodes, steps_present(run.checkpoints))


def test_each_goes_where_it_should(run, tmp_path):
    def body(rank):
        return rank.save(10), rank.save(20, shared=True), rank.save(30)

    assert ranks(run, tmp_path, body) == (
        [(10, "local", True)],
        [(20, "local", True), (20, "shared", True)],
        [(30, "local", True)],
    )
    assert there(run, tmp_path) == ([20, 30], [20, 30], [20])
    assert wrong_tensors(newest_verified(run.checkpoints)) == []
    shared, local = read_manifest(run.checkpoint(20)), read_manifest(folder_of(run, tmp_path, "a").checkpoint(20))
    assert shared.to_json() == local.to_json(), "the same checkpoint, byte for byte"


def test_the_training_may_wait_for_it(run, tmp_path):
    def body(rank):
        rank.begin(10, shared=True)
        assert not rank.local.busy
        rank.heard()
        return [(one.tier, one.ok, one.stall_s == one.write_s > 0) for one in rank.outcomes]

    assert ranks(run, tmp_path, body, waits=True) == [("local", True, True), ("shared", True, True)]


def test_rank_0_is_told_while_training_goes_on(run, tmp_path):
    def body(rank):
        rank.begin(10)
        told = []
        if rank.group.rank == 0:
            until(lambda: told.extend(rank.saver.poll()) or told)
        else:
            until(lambda: rank.saver.poll() or not rank.local.busy)
        rank.group.barrier()
        assert rank.saver.poll() == []
        return len(told) + rank.group.rank, rank.heard()

    assert ranks(run, tmp_path, body) == (1, [])


def test_a_save_waits_for_the_one_before(run, tmp_path):
    gate, order = tmp_path / "gate", []

    def body(rank):
        rank.begin(10)
        if rank.group.rank == 0:
            until(gate.with_suffix(".here").exists)
            threading.Timer(0.3, lambda: (order.append("opened"), gate.touch())).start()
        rank.begin(20)
        order.append("begun")
        return rank.heard()

    assert ranks(run, tmp_path, body, door={1: held_door(gate)}) == [(10, "local", True), (20, "local", True)]
    assert order == ["opened", "begun", "begun"]


FULL = {"code": errno.ENOSPC, "calls": ["pwrite"], "times": 1}


def test_where_a_nodes_disk_is_full_the_next_goes_to_the_run_folder_too(run, tmp_path):
    def body(rank):
        first = rank.save(10)
        error = rank.outcomes[0].error
        return first, error, rank.save(20), rank.save(30)

    door = {1: faulty_door(refusals=[{**FULL, "path": "/b/slurmtrain-"}])}
    first, error, second, third = ranks(run, tmp_path, body, door=door)
    assert first == [(10, "local", False)]
    assert error.startswith("checkpoint of step 10 not saved: local: rank 1 on b: ")
    assert error.endswith("No space left on device")
    assert second == [(20, "local", True), (20, "shared", True)]
    assert third == [(30, "local", True)]
    assert there(run, tmp_path) == ([20, 30], [20, 30], [20])


@pytest.mark.parametrize("victim", [0, 1])
def test_where_the_run_folder_fails_the_nodes_have_it_and_the_next_tries_again(run, tmp_path, victim):
    def body(rank):
        first = rank.save(10, shared=True)
        return sorted(first), rank.save(20), rank.save(30)

    door = {victim: faulty_door(refusals=[{**FULL, "path": "run/checkpoints"}])}
    first, second, third = ranks(run, tmp_path, body, door=door)
    assert first == [(10, "local", True), (10, "shared", False)]
    assert second == [(20, "local", True), (20, "shared", True)]
    assert third == [(30, "local", True)]
    assert there(run, tmp_path) == ([20, 30], [20, 30], [20])


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("shared", [False, True])
def test_a_writer_that_dies_costs_the_save_alone(run, tmp_path, victim, shared):
    gate = tmp_path / "gate"

    def body(rank):
        rank.begin(10, shared=shared)
        if rank.group.rank == victim:
            until(gate.with_suffix(".here").exists)
            pid = writer_pid(rank.saver)
            os.kill(pid, signal.SIGKILL)
            until(lambda: gone(pid))
            gate.touch()
        first = rank.heard()
        assert all(f"rank {victim}" in one.error and "SIGKILL" in one.error for one in rank.outcomes), rank.outcomes
        return sorted(first), rank.save(20), rank.save(30)

    first, second, third = ranks(run, tmp_path, body, door={victim: held_door(gate)})
    assert first == [(10, "local", False), (10, "shared", False)][: 1 + shared]
    assert second == [(20, "local", True), (20, "shared", True)]
    assert third == [(30, "local", True)]
    assert there(run, tmp_path) == ([20, 30], [20, 30], [20])


def test_a_state_that_is_not_finite_goes_nowhere(run, tmp_path):
    def body(rank):
        what = source(10, rank.group.rank, rank.group.size)
        if rank.group.rank == 1:
            what._pieces[0].array[0, 0] = float("inf")
        assert rank.saver.begin(header(10, 2), what, shared=True) is None
        first = rank.heard()
        assert all("rank 1" in one.error and "model/w holds numbers that are not finite" in one.error for one in rank.outcomes)
        return sorted(first)

    assert ranks(run, tmp_path, body) == [(10, "local", False), (10, "shared", False)]
    assert there(run, tmp_path) == ([], [], [])


def test_a_group_that_broke_is_made_anew(run, tmp_path):
    def body(rank):
        first = rank.save(10)
        if rank.group.rank == 1:
            rank.local._group.close()
        return first, rank.save(20), rank.save(30), rank.save(40)

    first, second, third, fourth = ranks(run, tmp_path, body)
    assert first == [(10, "local", True)]
    assert second == [(20, "local", False)]
    assert third == [(30, "local", True), (30, "shared", True)]
    assert fourth == [(40, "local", True)]
    assert there(run, tmp_path) == ([30, 40], [30, 40], [30])


def test_what_the_nodes_have_already_is_not_written_there_again(run, tmp_path):
    """A stop at a step that was saved on the nodes alone."""

    def body(rank):
        return rank.save(10), rank.save(10, shared=True), rank.save(20)

    first, second, third = ranks(run, tmp_path, body)
    assert first == [(10, "local", True)]
    assert second == [(10, "shared", True)]
    assert third == [(20, "local", True)]
    assert there(run, tmp_path) == ([10, 20], [10, 20], [10])
    assert wrong_tensors(newest_verified(run.checkpoints)) == []


def test_the_last_one_goes_to_the_run_folder_alone(run, tmp_path):
    def body(rank):
        first = rank.save(10)
        what = source(20, rank.group.rank, rank.group.size)
        assert rank.saver.begin(header(20, 2), what, local=False) is None
        return first, rank.heard(), rank.local.failed

    assert ranks(run, tmp_path, body) == ([(10, "local", True)], [(20, "shared", True)], False)
    assert there(run, tmp_path) == ([10], [10], [20])


def test_giving_the_run_folder_up_leaves_the_nodes_their_part(run, tmp_path, monkeypatch):
    """Rank 1 still writes to its node's disk when rank 0 meets a full run folder."""
    monkeypatch.setattr("slurmtrain.checkpoint.staged.FAIL_WITHIN_S", 0.1)
    gate = tmp_path / "gate"

    def body(rank):
        rank.begin(10, shared=True)
        if rank.group.rank == 1:
            until(gate.with_suffix(".here").exists)
            threading.Timer(1.5, gate.touch).start()
        return sorted(rank.heard())

    door = {0: faulty_door(refusals=[{**FULL, "path": "run/checkpoints"}]), 1: held_door(gate)}
    assert ranks(run, tmp_path, body, door=door) == [(10, "local", True), (10, "shared", False)]
    assert there(run, tmp_path) == ([10], [10], [])
