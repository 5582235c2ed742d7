"""Saves on nodes' own disks: every file on two nodes, the same manifest everywhere, all or nothing, the newest two kept."""

from __future__ import annotations

import errno

import pytest

from slurmtrain.checkpoint.group import Failure
from slurmtrain.checkpoint.local_save import LocalSaves
from slurmtrain.errors import OwnershipError
from slurmtrain.rundir import RunDir
from slurmtrain.store.local import newest_local
from slurmtrain.store.manifest import MANIFEST_NAME
from slurmtrain.store.scratch import held
from slurmtrain.store.verify import read_manifest, sum_problems
from tests.checkpoint.arrays import header
from tests.checkpoint.nodes import folder_of, ground, save, world, written
from tests.fakes.syscalls import FakeSyscalls, Refusal


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "run")
    run.create()
    return run


def names(folder):
    return sorted(path.name for path in folder.path.iterdir())


@pytest.mark.parametrize("nodes, per_node", [(("a", "b"), 1), (("a", "b", "c"), 2), (("a",), 2)])
def test_every_file_lies_on_its_node_and_on_the_next(run, tmp_path, nodes, per_node):
    def body(group):
        outcomes, _ = save(group, ground(group, run, tmp_path, nodes), 10)
        return outcomes

    results = world(nodes, per_node, body)
    (told,) = results[0]
    assert (told.ok, told.step, told.tier, told.error, told.stall_s) == (True, 10, "local", "", 0.5)
    assert all(not outcomes for outcomes in results[1:])
    manifests = set()
    for i, node in enumerate(nodes):
        folder = folder_of(run, tmp_path, node).checkpoint(10)
        manifests.add((folder / MANIFEST_NAME).read_bytes())
        own = {f"rank-{i * per_node + j:05d}.h5" for j in range(per_node)}
        before = {f"rank-{(i - 1) % len(nodes) * per_node + j:05d}.h5" for j in range(per_node)}
        assert {path.name for path in folder.iterdir()} == {MANIFEST_NAME, *own, *before}
        assert sum_problems(folder, read_manifest(folder), sorted(own | before)) == []
    assert len(manifests) == 1
    assert told.bytes == read_manifest(folder).total_bytes
    newest = newest_local(run)
    assert (newest.step, newest.attempt, newest.nodes, newest.t) == (10, 1, nodes, 100.0)


def test_the_newest_two_are_kept(run, tmp_path):
    def body(group):
        for step in (10, 20, 30):
            save(group, ground(group, run, tmp_path, ("a", "b")), step)

    world(("a", "b"), 1, body)
    for node in ("a", "b"):
        assert names(folder_of(run, tmp_path, node)) == ["run.json", "step-00000020", "step-00000030"]


def saved_then(run, tmp_path, *, nodes=("a", "b"), per_node=2, **more):
    """Step 10 goes well, step 20 is disturbed; rank 0's outcome of that, and whether each rank knows."""

    def body(group):
        save(group, ground(group, run, tmp_path, nodes), 10)
        chosen = {key: value(group.rank) for key, value in more.items()}
        owner_check = chosen.pop("owner_check", lambda: None)
        return save(group, ground(group, run, tmp_path, nodes, owner_check=owner_check), 20, **chosen)

    results = world(nodes, per_node, body)
    assert all(saves.failed for _, saves in results), "all ranks know: the next save goes to the shared folder, too"
    (told,) = results[0][0]
    assert not told.ok
    assert told.error.startswith("checkpoint of step 20 not saved: local: ")
    for node in nodes:
        assert names(folder_of(run, tmp_path, node)) == ["run.json", "step-00000010"]
    assert newest_local(run).step == 10
    return told.error


def test_a_writer_that_fails_is_named_and_nothing_stays(run, tmp_path):
    def writer(rank):
        return written if rank != 3 else lambda *_: Failure("its writer was killed by SIGKILL", "CheckpointError")

    error = saved_then(run, tmp_path, writer=writer)
    assert "rank 3 on b: its writer was killed by SIGKILL" in error


@pytest.mark.parametrize(
    "call, path", [("create", "rank-00001.h5"), ("pwrite", "rank-00001.h5"), ("fsync", "rank-00001.h5"), ("create", MANIFEST_NAME)]
)
def test_a_full_disk_of_one_node_leaves_nothing_on_any(run, tmp_path, call, path):
    def calls(rank):
        return FakeSyscalls(tmp_path, refusals=[Refusal(errno.ENOSPC, calls=(call,), path=path, times=None)] if rank >= 2 else [])

    error = saved_then(run, tmp_path, calls=calls)
    assert "on b" in error
    assert "No space left" in error


def test_damage_between_the_writer_and_the_copy_is_found(run, tmp_path):
    def flipped(staging, step, rank, size):
        report = written(staging, step, rank, size)
        path = staging / report.file
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        return report

    error = saved_then(run, tmp_path, writer=lambda rank: flipped if rank == 1 else written)
    assert "rank 1 on a" in error
    assert "differs from what was written" in error


def test_an_attempt_that_has_lost_the_run_publishes_nothing(run, tmp_path):
    def lost():
        raise OwnershipError("another attempt owns this run")

    error = saved_then(run, tmp_path, owner_check=lambda rank: lost)
    assert "another attempt owns this run" in error


def test_a_rename_that_fails_on_one_node_takes_the_others_back(run, tmp_path):
    def calls(rank):
        return FakeSyscalls(
            tmp_path, refusals=[Refusal(errno.EIO, calls=("rename",), path="step-00000020", times=None)] if rank == 2 else []
        )

    error = saved_then(run, tmp_path, calls=calls)
    assert "rank 2 on b" in error


def test_a_rank_that_is_gone_costs_the_save_alone(run, tmp_path):
    def body(group):
        here = ground(group, run, tmp_path, ("a", "b"))
        save(group, here, 10)
        if group.rank == 1:
            group.close()
            return None
        saves = LocalSaves(here, lambda: group, [(10, 1)])
        saves.begin(header(20, 2), 0.0, renew=False)
        saves.report(written(saves.staging(header(20, 2)), 20, 0, 2))
        saves.wait(30.0)
        return saves.take(), saves

    (outcome,), saves = world(("a", "b"), 1, body)[0]
    assert not outcome.ok
    assert saves.broken, "the next save makes a new group"
    assert [one.step for one in held(folder_of(run, tmp_path, "a"))] == [10]
    assert names(folder_of(run, tmp_path, "a")) == ["run.json", "step-00000010"]


def test_a_rank_for_which_another_writes_only_agrees(run, tmp_path):
    """One writer a node, two ranks."""

    def writer(rank):
        return (lambda staging, step, rank, size: written(staging, step, rank // 2, 2)) if rank % 2 == 0 else lambda *_: None

    def body(group):
        return save(group, ground(group, run, tmp_path, ("a", "b")), 10, writer=writer(group.rank))[0]

    (told,) = world(("a", "b"), 2, body)[0]
    assert told.ok
    assert [sorted(one.files) for node in ("a", "b") for one in held(folder_of(run, tmp_path, node))] == [
        ["rank-00000.h5", "rank-00001.h5"]
    ] * 2


def test_what_a_failed_save_could_not_remove_goes_at_the_next(run, tmp_path):
    """Also where that one fails, too: a full disk must not grow fuller."""

    def body(group):
        here = ground(group, run, tmp_path, ("a", "b"))
        saves = LocalSaves(here, lambda: group)
        for step in (10, 20, 30):
            saves.begin(header(step, 2), 0.0, renew=False)
            report = written(saves.staging(header(step, 2)), step, group.rank, 2)
            saves.report(report if step == 30 else Failure("full", "CheckpointError"))
            saves.wait(30.0)
            group.barrier()
            if step == 10 and here.seat.first:
                here.local.staging(10, 1).mkdir()
                (here.local.staging(10, 1) / "rank-00000.h5").write_bytes(b"late")
            if step == 20:
                assert names(here.local) == ["run.json"]
            group.barrier()
        return saves.failed

    assert world(("a", "b"), 1, body) == [False, False]
    assert names(folder_of(run, tmp_path, "a")) == ["run.json", "step-00000030"]
