"""RUN@STEP, and what it means."""

from __future__ import annotations

import doctest
import os

import pytest

from slurmtrain.cli import ckpt_facts, ckpt_names
from slurmtrain.cli.ckpt_names import checkpoint_named, run_at_step
from slurmtrain.errors import UserError
from slurmtrain.store.aside import set_aside
from tests.checkpoint.stored import store
from tests.cli.ckpts import TENSORS, make_run, save
from tests.cli.desk import Desk


@pytest.mark.parametrize(
    "text, means",
    [
        ("llama", ("llama", None)),
        ("llama@0", ("llama", 0)),
        ("4711@20", ("4711", 20)),
        ("runs/llama@00000300", ("runs/llama", 300)),
        ("me@home/llama", ("me@home/llama", None)),
        ("me@home/llama@9", ("me@home/llama", 9)),
        ("a@b@9", ("a@b", 9)),
        ("copy@home/", ("copy@home/", None)),
    ],
)
def test_what_a_name_means(text, means):
    assert run_at_step(text) == means


@pytest.mark.parametrize(
    "text", ["", "@", "@5", "llama@", "llama@five", "llama@-1", "llama@5.0", "llama@1e3", "llama@५", "llama@ 5", f"llama@{'9' * 19}"]
)
def test_nonsense_is_told(text):
    with pytest.raises(UserError, match="RUN@STEP"):
        run_at_step(text)


@pytest.fixture
def desk(tmp_path) -> Desk:
    return Desk(tmp_path)


def test_runs_steps_and_folders(desk, monkeypatch):
    run = make_run(desk)
    save(desk, run, 5, 12)
    for text, step in (("job", 12), ("job@5", 5), (f"{run.path}@5", 5), (str(run.path), 12), ("job@0005", 5)):
        named = checkpoint_named(text, None, desk.doors)
        assert (named.folder, named.run, named.step) == (run.checkpoint(step), run, step)
        assert (str(named), named.file_name) == (f"job@{step}", f"job-step-{step:08d}")
    monkeypatch.chdir(run.checkpoints)
    for text in (str(run.checkpoint(5)), "step-00000005", "./step-00000005/", f"{run.checkpoint(5)}/."):
        named = checkpoint_named(text, None, desk.doors)
        assert (named.folder, named.run, named.step) == (run.checkpoint(5), run, 5)


def test_a_folder_by_itself_and_one_set_aside(desk, tmp_path):
    archive = tmp_path / "archive" / "mine"
    store(archive, 7, TENSORS)
    named = checkpoint_named(str(archive), None, desk.doors)
    assert (named.folder, named.run, named.step, str(named)) == (archive, None, None, str(archive))
    run = make_run(desk)
    save(desk, run, 5)
    aside = set_aside(run, 5, "why", clock=desk.clock)
    named = checkpoint_named(str(aside), None, desk.doors)
    assert (named.folder, named.run, named.step, str(named)) == (aside, run, None, str(aside))


def test_a_link_to_a_checkpoint_is_that_checkpoint(desk, tmp_path):
    run = make_run(desk)
    save(desk, run, 5)
    (tmp_path / "latest").symlink_to(run.checkpoint(5))
    assert checkpoint_named(str(tmp_path / "latest"), None, desk.doors).folder == run.checkpoint(5)


def test_a_damaged_folder_is_found_by_its_name(desk, tmp_path):
    """What is wrong with it is for the command to tell."""
    folder = tmp_path / "archive" / "step-00000007"
    folder.mkdir(parents=True)
    assert checkpoint_named(str(folder), None, desk.doors).step == 7


def test_what_is_not_there_names_what_is(desk):
    run = make_run(desk)
    with pytest.raises(UserError, match="run job has no checkpoint yet"):
        checkpoint_named("job@3", None, desk.doors)
    save(desk, run, *range(1, 12))
    with pytest.raises(UserError, match="run job has no checkpoint of step 20: there are 4, 5, 6, 7, 8, 9, 10, 11 and 3 older ones"):
        checkpoint_named("job@20", None, desk.doors)
    with pytest.raises(UserError, match="no run 'jop' under"):
        checkpoint_named("jop@20", None, desk.doors)
    with pytest.raises(UserError, match="no run '/nowhere/step-00000003' under"):
        checkpoint_named("/nowhere/step-00000003", None, desk.doors)


def test_a_folder_that_may_not_be_read(desk, tmp_path, monkeypatch):
    stat = os.stat

    def refused(path, **more):
        if str(path).startswith(f"{tmp_path}/locked/"):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **more)

    monkeypatch.setattr(os, "stat", refused)
    with pytest.raises(UserError, match="locked/step-00000003: Permission denied"):
        checkpoint_named(f"{tmp_path}/locked/step-00000003", None, desk.doors)


@pytest.mark.parametrize("module", [ckpt_names, ckpt_facts])
def test_the_examples_are_true(module):
    result = doctest.testmod(module)
    assert (result.attempted > 0, result.failed) == (True, 0)
