"""Checkpoints on a node's own disk: what is whole over all nodes, what appears at once, what goes."""

from __future__ import annotations

import errno
import json
import os

import pytest

from slurmtrain.errors import CheckpointError
from slurmtrain.rundir import RunDir
from slurmtrain.store.local import Rules, make_rules
from slurmtrain.store.scratch import (
    Held,
    candidates,
    going,
    held,
    leave_node,
    local_dir,
    open_local,
    prune,
    publish_local,
)
from tests.fakes.syscalls import Cut, FakeSyscalls, Refusal
from tests.store.checkpoints import filled, manifest_of

RULES = Rules("0123456789abcdef")
NAMES = ("rank-00000.h5", "rank-00001.h5")


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "runs" / "llama")
    run.create()
    return run


@pytest.fixture
def local(run, tmp_path):
    made = local_dir(tmp_path / "scratch", run, RULES)
    open_local(made, run, RULES, 1)
    return made


def keep(local, step, attempt=1, names=NAMES, calls=None):
    """A node's part of a checkpoint of two files: those named."""
    files = {name: filled(name, step) for name in NAMES}
    staging = local.staging(step, attempt)
    staging.mkdir()
    for name in names:
        (staging / name).write_bytes(files[name])
    publish_local(local, staging, step, manifest_of(step, files, attempt).to_json(), *([calls] if calls else []))


def test_the_folder_is_this_users_and_this_runs(run, tmp_path):
    one = local_dir(tmp_path / "scratch", run, RULES)
    assert one.path.parent == tmp_path / "scratch" / f"slurmtrain-{os.getuid()}" / "checkpoints"
    assert one.path.name.startswith("llama-")
    assert one != local_dir(tmp_path / "scratch", run, Rules("fedcba9876543210")), "a run of the same name in the same place"
    assert one != local_dir(tmp_path / "scratch", RunDir(tmp_path / "llama"), RULES)
    open_local(one, run, RULES, 1)
    assert one.path.parent.parent.stat().st_mode & 0o777 == 0o700


def test_a_folder_of_another_user_is_refused(run, tmp_path, monkeypatch):
    made = local_dir(tmp_path / "scratch", run, RULES)
    open_local(made, run, RULES, 1)
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(CheckpointError, match="another user"):
        open_local(made, run, RULES, 1)


def test_what_a_node_has_is_told_file_by_file(local):
    keep(local, 10, names=NAMES[:1])
    keep(local, 20, attempt=2)
    (local.checkpoint(20) / NAMES[0]).write_bytes(b"short")
    (local.checkpoint(30)).mkdir()
    found = held(local)
    assert [(one.step, one.attempt, one.count, sorted(one.files)) for one in found] == [(20, 2, 2, [NAMES[1]]), (10, 1, 2, [NAMES[0]])]


def part(step, *files, attempt=1, seal="s", count=2):
    return Held(step, attempt, 0.0, seal, count, frozenset(files))


def test_a_checkpoint_is_whole_over_all_nodes():
    whole, broken = candidates([[part(20, "a"), part(10, "a", "b")], [part(20, "b"), part(10, "a", "b")]], RULES)
    assert [(one.step, dict(one.holders)) for one in whole] == [(20, {"a": (0,), "b": (1,)}), (10, {"a": (0, 1), "b": (0, 1)})]
    assert broken == []


def test_what_lies_on_lost_nodes_is_missing():
    whole, broken = candidates([[part(20, "a"), part(10, "a", "b")], []], RULES)
    assert [one.step for one in whole] == [10]
    assert broken == [(20, "local: 1 of its 2 files on no node of this attempt")]


def test_parts_of_two_saves_of_one_step_are_not_mixed():
    whole, broken = candidates([[part(20, "a", attempt=1, seal="x")], [part(20, "b", attempt=2, seal="y")]], RULES)
    assert (whole, len(broken)) == ([], 2)
    whole, _ = candidates([[part(20, "a", "b", attempt=1, seal="x")], [part(20, "a", "b", attempt=2, seal="y")]], RULES)
    assert [one.attempt for one in whole] == [2, 1], "the later attempt's first"


def test_forgotten_ones_are_not_there():
    rules = RULES.without(1, 10)
    whole, broken = candidates([[part(20, "a", "b"), part(10, "a", "b")]], rules)
    assert ([one.step for one in whole], broken) == ([10], [])


def test_a_damaged_file_counts_no_more():
    (one,), _ = candidates([[part(20, "a", "b")], [part(20, "b")]], RULES)
    assert one.without(0, "b").missing == 0
    assert one.without(0, "b").holders["b"] == (1,)
    assert one.without(0, "a").missing == 1


@pytest.mark.parametrize(
    "there, step, attempt, expected",
    [
        ([(10, 1)], 10, 1, []),
        ([(10, 1), (20, 1)], 20, 1, []),
        ([(10, 1), (20, 1), (30, 1)], 30, 1, [10]),
        ([(50, 1), (30, 2)], 30, 2, [50]),
        ([(50, 2), (30, 2)], 30, 2, []),
        ([(50, 1), (40, 1), (30, 1), (45, 2)], 45, 2, [30, 50]),
    ],
)
def test_the_newest_two_stay_and_what_the_run_left_behind_goes(there, step, attempt, expected):
    assert going(there, step, attempt) == expected


def test_pruning_removes_folders_and_leftovers(local):
    for step in (10, 20):
        keep(local, step)
    local.staging(15, 1).mkdir()
    assert prune(local, [10], 1) == []
    assert sorted(path.name for path in local.path.iterdir()) == ["run.json", "step-00000020"]


def test_what_cannot_be_removed_is_told(local):
    keep(local, 10)
    calls = FakeSyscalls(local.path, refusals=[Refusal(errno.EIO, times=None, calls=("unlink",))])
    (note,) = prune(local, [10], 1, calls)
    assert "Input/output error" in note


def test_a_part_appears_at_once_at_every_cut(run, tmp_path):
    """Whatever call is the last: the new part, or the old one of this step, or none; never a manifest with less than was there."""
    for number in range(1, 40):
        local = local_dir(tmp_path / f"scratch{number}", run, RULES)
        open_local(local, run, RULES, 1)
        keep(local, 20, attempt=1, names=NAMES[:1])
        calls = FakeSyscalls(local.path, cut_at=number)
        try:
            keep(local, 20, attempt=2, calls=calls)
            assert [(one.attempt, len(one.files)) for one in held(local)] == [(2, 2)]
            assert number > 5
            break
        except Cut:
            assert [(one.attempt, len(one.files)) for one in held(local)] in ([], [(1, 1)], [(2, 2)])
        open_local(local, run, RULES, 2)
        assert not [path.name for path in local.path.iterdir() if path.name.startswith(".")]
    else:
        pytest.fail("never came to its end")


def test_opening_clears_up_behind_dead_attempts(local, run):
    keep(local, 10)
    local.staging(20, 1).mkdir()
    local.staging(20, 3).mkdir()
    local.trash(5).mkdir()
    (local.checkpoint(10) / ".rank-00001.h5.tmp").write_bytes(b"half")
    open_local(local, run, RULES, 2)
    assert sorted(path.name for path in local.path.iterdir()) == [".step-00000020.a0003.tmp", "run.json", "step-00000010"]
    assert [one.step for one in held(local)] == [10]
    assert not (local.checkpoint(10) / ".rank-00001.h5.tmp").exists()


def other(run, tmp_path, name):
    """Another run that has something on this node."""
    another = RunDir(run.path.parent / name)
    another.create()
    rules = make_rules(another)
    made = local_dir(tmp_path / "scratch", another, rules)
    open_local(made, another, rules, 1)
    keep(made, 10)
    return another, made


def test_runs_that_are_over_leave_nothing_when_the_next_one_comes(run, tmp_path, local):
    _, lives = other(run, tmp_path, "living")
    finished, done = other(run, tmp_path, "finished")
    removed, gone = other(run, tmp_path, "removed")
    again, before = other(run, tmp_path, "again")
    _, unknown = other(run, tmp_path, "unseen")
    finished.finished.write_text("{}")
    removed.path.rename(tmp_path / "elsewhere")
    again.local_rules.unlink()
    make_rules(again)
    told = json.loads(unknown.run_json.read_text())
    unknown.run_json.write_text(json.dumps({**told, "run": "/no/such/file/system/run"}))
    open_local(local, run, RULES, 1)
    assert lives.path.exists()
    assert not done.path.exists()
    assert not gone.path.exists()
    assert not before.path.exists(), "another run of this name in this place"
    assert unknown.path.exists(), "its file system may be away for a moment"


def test_a_finished_run_leaves_the_node(local):
    keep(local, 10)
    leave_node(local)
    assert not local.path.exists()
