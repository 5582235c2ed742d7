"""Checkpoints of users' scripts, by names as Megatron-LM, torchtitan and plain scripts give them."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmtrain.atomic import SystemDisk
from slurmtrain.config.entry import EntryConfig
from slurmtrain.rundir import RunDir
from slurmtrain.store.foreign import Foreign, newest_foreign, newest_seen, write_told


@pytest.fixture
def run(tmp_path):
    made = RunDir(tmp_path / "run")
    made.create()
    return made


def entry(**keys) -> EntryConfig:
    return EntryConfig(command=("x",), **keys)


def touch(run: RunDir, *names: str) -> None:
    for name in names:
        path = run.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


def test_nothing_there_is_none(run):
    patterns = [r"checkpoints/step-(?P<step>\d+)\.pt", r"elsewhere/(?P<step>\d+)/done"]
    assert [newest_foreign(run, entry(checkpoint=one)) for one in patterns] == [None, None]
    assert newest_foreign(run, entry()) is None


def test_the_highest_number_is_the_newest_and_what_does_not_fit_whole_is_left_out(run):
    touch(run, "checkpoints/step-9.pt", "checkpoints/step-10.pt", "checkpoints/step-11.pt.tmp", "checkpoints/xstep-12.pt")
    pattern = r"checkpoints/step-(?P<step>\d+)\.pt"
    assert newest_foreign(run, entry(checkpoint=pattern)) == Foreign(10, run.checkpoints / "step-10.pt")
    assert newest_seen(run, pattern) == 10


def test_a_number_that_no_run_reaches_is_no_step(run):
    touch(run, "checkpoints/step-10.pt", f"checkpoints/step-{'9' * 30}.pt")
    assert newest_foreign(run, entry(checkpoint=r"checkpoints/step-(?P<step>\d+)\.pt")) == Foreign(10, run.checkpoints / "step-10.pt")


def test_a_folder_counts_once_what_closes_it_is_there(run):
    """torchtitan: DCP writes .metadata last."""
    touch(run, "outputs/checkpoint/step-10/.metadata", "outputs/checkpoint/step-20/__0_0.distcp")
    assert newest_foreign(run, entry(convention="torchtitan")) == Foreign(10, run.path / "outputs/checkpoint/step-10")


@pytest.mark.parametrize(("text", "step"), [("40", 40), ("40\n", 40), ("release", None), ("", None), ("4x", None)])
def test_a_file_names_the_newest(run, text, step):
    """Megatron-LM: latest_checkpointed_iteration.txt."""
    touch(run, "checkpoints/iter_0000099/model.pt")
    (run.checkpoints / "latest_checkpointed_iteration.txt").write_text(text)
    found = newest_foreign(run, entry(convention="megatron"))
    assert found == (None if step is None else Foreign(step, run.checkpoints))


def test_an_absolute_pattern_leaves_the_run(run, tmp_path):
    (tmp_path / "other.d" / "7").mkdir(parents=True)
    assert newest_foreign(run, entry(checkpoint=rf"{tmp_path}/other.d/(?P<step>\d+)")) == Foreign(7, tmp_path / "other.d/7")


def test_what_the_script_told_counts_while_it_is_there(run):
    touch(run, "checkpoints/step-10.pt", "mine/last.bin")
    both = entry(checkpoint=r"checkpoints/step-(?P<step>\d+)\.pt")
    write_told(run, Foreign(12, run.path / "mine/last.bin"), SystemDisk())
    assert newest_foreign(run, both) == Foreign(12, run.path / "mine/last.bin")
    (run.path / "mine/last.bin").unlink()
    assert newest_foreign(run, both) == Foreign(10, run.checkpoints / "step-10.pt")
    run.told_json.write_text("{")
    assert newest_foreign(run, both) == Foreign(10, Path(run.checkpoints / "step-10.pt"))
