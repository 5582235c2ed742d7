"""Going on from nodes' own disks: after the loss of a node, under other nodes and layouts, past damage; never from what is not whole."""

from __future__ import annotations

import shutil

import pytest

from slurmtrain.boxes import Part
from slurmtrain.errors import ConfigError, CorruptCheckpointError
from slurmtrain.rundir import RunDir
from slurmtrain.store.local import forget_after
from slurmtrain.store.manifest import MANIFEST_NAME
from slurmtrain.store.scratch import held
from tests.checkpoint.arrays import SHAPES, rows, save_step
from tests.checkpoint.nodes import folder_of, ground, load, save, world
from tests.fakes.thread_group import run_ranks


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "run")
    run.create()
    run.attempt(1).create()
    return run


def saved(run, tmp_path, nodes, per_node, *, steps=(10, 20), attempt=1):
    def body(group):
        for step in steps:
            outcomes, _ = save(group, ground(group, run, tmp_path, nodes, attempt=attempt), step)
            assert all(one.ok for one in outcomes)

    world(nodes, per_node, body)


def loaded(run, tmp_path, nodes, per_node, parts_of=None, *, attempt=2):
    """(step, tier, passed over), the same on all ranks, each of which has compared what it wanted with the state of the step."""

    def body(group):
        more = {} if parts_of is None else {"parts_of": lambda manifest: parts_of(group, manifest)}
        return load(group, run, tmp_path, nodes, attempt=attempt, **more)

    results = world(nodes, per_node, body)
    assert all(one == results[0] for one in results)
    return results[0]


def sharded(group, _manifest):
    """Rows of every tensor, as FSDP would have them in this world."""
    boxes = ((name, shape, rows(shape, group.rank, group.size)) for name, shape in SHAPES.items())
    return [Part(name, shape, box, tuple((0, n) for n in box.shape)) for name, shape, box in boxes if box is not None and box.volume]


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_all_nodes_are_there(run, tmp_path):
    saved(run, tmp_path, ("a", "b"), 2)
    assert loaded(run, tmp_path, ("a", "b"), 2) == (20, "local", ())
    assert loaded(run, tmp_path, ("b", "a"), 2) == (20, "local", ()), "in another order"


@pytest.mark.parametrize("parts_of", [None, sharded])
@pytest.mark.parametrize("lost", ["a", "b", "c"])
def test_after_the_loss_of_one_node_its_files_come_from_its_partner(run, tmp_path, lost, parts_of):
    saved(run, tmp_path, ("a", "b", "c"), 2)
    shutil.rmtree(tmp_path / lost)
    nodes = tuple("d" if node == lost else node for node in "abc")
    assert loaded(run, tmp_path, nodes, 2, parts_of) == (20, "local", ())
    assert [one.step for one in held(folder_of(run, tmp_path, "d"))] == [20]


def test_a_node_gets_no_more_than_its_ranks_want(run, tmp_path):
    saved(run, tmp_path, ("a", "b", "c"), 1, steps=(10,))
    shutil.rmtree(tmp_path / "c")
    assert loaded(run, tmp_path, ("a", "b", "d"), 1, sharded) == (10, "local", ())
    (one,) = held(folder_of(run, tmp_path, "d"))
    assert one.files == {"rank-00002.h5"}


def test_another_number_of_nodes_and_ranks(run, tmp_path):
    saved(run, tmp_path, ("a", "b"), 2, steps=(10,))
    assert loaded(run, tmp_path, ("c", "b", "a", "d"), 1, sharded) == (10, "local", ())
    assert loaded(run, tmp_path, ("a", "d"), 3, sharded, attempt=3) == (10, "local", ())


def test_what_lay_on_lost_nodes_alone_is_passed_over(run, tmp_path):
    saved(run, tmp_path, ("a", "b"), 1, steps=(10, 20))
    shutil.rmtree(tmp_path / "a")
    (folder_of(run, tmp_path, "b").checkpoint(20) / "rank-00000.h5").unlink()
    step, _, passed = loaded(run, tmp_path, ("c", "b"), 1)
    assert (step, passed) == (10, ((20, "local: 1 of its 2 files on no node of this attempt"),))
    shutil.rmtree(tmp_path / "b")
    shutil.rmtree(tmp_path / "c")
    assert loaded(run, tmp_path, ("c", "d"), 1, attempt=3) == (None, "", ())


def test_a_damaged_file_is_taken_from_the_partner(run, tmp_path):
    saved(run, tmp_path, ("a", "b"), 2, steps=(10,))
    flip(folder_of(run, tmp_path, "a").checkpoint(10) / "rank-00001.h5")
    step, _, passed = loaded(run, tmp_path, ("a", "b"), 2)
    assert step == 10
    assert len(passed) == 1
    assert passed[0][0] == 10
    assert "local: a: " in passed[0][1]
    assert "rank-00001.h5: chunk 0" in passed[0][1]
    assert loaded(run, tmp_path, ("a", "b"), 2, attempt=3) == (10, "local", ()), "it was put in the damaged one's place"


def test_a_damaged_copy_is_found_on_its_way_and_the_older_one_taken(run, tmp_path):
    saved(run, tmp_path, ("a", "b"), 1)
    shutil.rmtree(tmp_path / "a")
    flip(folder_of(run, tmp_path, "b").checkpoint(20) / "rank-00000.h5")
    step, _, passed = loaded(run, tmp_path, ("c", "b"), 1, sharded)
    assert step == 10
    assert [one for one, _ in passed] == [20, 20]
    assert "rank-00000.h5: chunk 0 differs" in passed[0][1]
    assert passed[1][1] == "local: 1 of its 2 files on no node of this attempt"


def test_both_copies_damaged(run, tmp_path):
    saved(run, tmp_path, ("a", "b"), 1, steps=(10,))
    for node in "ab":
        flip(folder_of(run, tmp_path, node).checkpoint(10) / "rank-00001.h5")
    step, _, passed = loaded(run, tmp_path, ("a", "b"), 1)
    assert step is None
    assert len(passed) == 3


def test_damaged_manifests_count_for_nothing(run, tmp_path):
    saved(run, tmp_path, ("a", "b"), 1)
    flip(folder_of(run, tmp_path, "a").checkpoint(20) / MANIFEST_NAME)
    assert loaded(run, tmp_path, ("a", "b"), 1) == (20, "local", ()), "b has copies of all"
    flip(folder_of(run, tmp_path, "b").checkpoint(20) / MANIFEST_NAME)
    assert loaded(run, tmp_path, ("a", "b"), 1, attempt=3)[0] == 20, "a has got the manifest anew"
    flip(folder_of(run, tmp_path, "a").checkpoint(20) / MANIFEST_NAME)
    flip(folder_of(run, tmp_path, "b").checkpoint(20) / MANIFEST_NAME)
    assert loaded(run, tmp_path, ("a", "b"), 1, attempt=4) == (10, "local", ())


def test_a_node_without_room_is_told_and_no_half_is_left(run, tmp_path, monkeypatch):
    saved(run, tmp_path, ("a", "b"), 1, steps=(10,))
    shutil.rmtree(tmp_path / "a")
    monkeypatch.setattr("slurmtrain.checkpoint.local_load.full_disk", lambda folder, need: f"{folder}: {need.bytes} needed, 0 free")
    step, _, passed = loaded(run, tmp_path, ("c", "b"), 1)
    assert step is None
    assert "rank 0 on c" in passed[0][1]
    assert "0 free" in passed[0][1]


def test_what_a_person_went_back_behind_does_not_come_back(run, tmp_path):
    saved(run, tmp_path, ("a", "b"), 1)
    forget_after(run, 10)
    assert loaded(run, tmp_path, ("a", "b"), 1) == (10, "local", ())
    forget_after(run, None)
    assert loaded(run, tmp_path, ("a", "b"), 1, attempt=3) == (None, "", ())


def test_a_later_attempt_may_save_that_step_again(run, tmp_path):
    saved(run, tmp_path, ("a", "b"), 1)
    forget_after(run, 10)
    saved(run, tmp_path, ("a", "b"), 1, steps=(20,), attempt=2)
    assert loaded(run, tmp_path, ("a", "b"), 1, attempt=3) == (20, "local", ())
    assert [(one.step, one.attempt) for one in held(folder_of(run, tmp_path, "a"))] == [(20, 2), (10, 1)]


def test_a_fault_of_the_job_is_raised_on_all_ranks(run, tmp_path):
    saved(run, tmp_path, ("a", "b"), 1, steps=(10,))

    def parts_of(group, _manifest):
        if group.rank == 1:
            raise ConfigError("another optimizer made it")
        return []

    with pytest.raises(ConfigError, match="another optimizer made it"):
        loaded(run, tmp_path, ("a", "b"), 1, parts_of)


def shared(run, step):
    """A checkpoint in the run folder."""

    def body(group):
        return save_step(run, step, group, keep=10).ok

    assert run_ranks(2, body) == [True, True]


@pytest.mark.parametrize("steps, expected", [((5,), (20, "local")), ((20,), (20, "local")), ((30,), (30, "shared"))])
def test_the_newest_of_both_tiers_wins_and_the_nearer_at_a_tie(run, tmp_path, steps, expected):
    saved(run, tmp_path, ("a", "b"), 1)
    for step in steps:
        shared(run, step)
    assert loaded(run, tmp_path, ("a", "b"), 1) == (*expected, ())


def test_from_tier_to_tier_until_one_is_sound(run, tmp_path):
    """Local 10 20, shared 5 15 25: the newest three are damaged one after another."""
    saved(run, tmp_path, ("a", "b"), 1)
    for step in (5, 15, 25):
        shared(run, step)
    flip(run.checkpoint(25) / "rank-00000.h5")
    assert loaded(run, tmp_path, ("a", "b"), 1)[:2] == (20, "local")
    assert not run.checkpoint(25).exists(), "set aside, as a sound one was found"
    for node in "ab":
        flip(folder_of(run, tmp_path, node).checkpoint(20) / "rank-00001.h5")
    step, tier, passed = loaded(run, tmp_path, ("a", "b"), 1, attempt=3)
    assert (step, tier, {one for one, _ in passed}) == (15, "shared", {20})
    (run.checkpoint(15) / "rank-00001.h5").unlink()
    step, tier, passed = loaded(run, tmp_path, ("a", "b"), 1, attempt=4)
    assert (step, tier) == (10, "local")
    assert [one for one, _ in passed] == [20, 15]
    shutil.rmtree(tmp_path / "a")
    shutil.rmtree(tmp_path / "b")
    assert loaded(run, tmp_path, ("a", "b"), 1, attempt=5) == (5, "shared", ())


def test_damage_everywhere_is_a_persons_decision(run, tmp_path):
    saved(run, tmp_path, ("a", "b"), 1, steps=(10,))
    shared(run, 5)
    flip(run.checkpoint(5) / "rank-00001.h5")
    for node in "ab":
        flip(folder_of(run, tmp_path, node).checkpoint(10) / "rank-00001.h5")
    with pytest.raises(CorruptCheckpointError, match="no checkpoint verifies"):
        loaded(run, tmp_path, ("a", "b"), 1)
    assert run.checkpoint(5).exists(), "nothing sound was found: it stays where it is"
