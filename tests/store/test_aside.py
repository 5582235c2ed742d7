"""What is set aside is listed no more and still there, with the reason."""

from __future__ import annotations

import errno

import pytest

from slurmtrain.rundir import RunDir
from slurmtrain.store.aside import Aside, asides, set_aside
from slurmtrain.store.listing import newest_verified, steps_present
from slurmtrain.store.retention import RetentionPolicy, retain
from slurmtrain.store.verify import verify
from tests.fakes.clock import FakeClock
from tests.fakes.syscalls import FakeSyscalls, Refusal, tree
from tests.store.checkpoints import save


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path)
    for step in (10, 20):
        save(run, step)
    return run


def test_it_is_listed_no_more_whole_and_says_why(run):
    was, clock = tree(run.checkpoint(20)), FakeClock()
    calls = FakeSyscalls()
    folder = set_aside(run, 20, "chunk 3 differs", calls=calls, clock=clock)
    assert folder == run.set_aside(20, 1)
    assert {path: data for path, data in tree(folder).items() if path != "aside.json"} == was
    assert steps_present(run.checkpoints) == [10]
    assert newest_verified(run.checkpoints).step == 10
    assert asides(run) == [Aside(20, 1, folder, "chunk 3 differs", clock.time())]
    assert calls.asked[:2] == [("rename", run.checkpoint(20)), ("fsync_dir", run.checkpoints)]


def test_each_has_a_number_of_its_own(run):
    set_aside(run, 20, "first")
    save(run, 20)
    set_aside(run, 20, "second")
    run.set_aside(20, 1).rename(run.path / "taken away by hand")
    save(run, 20)
    assert set_aside(run, 20, "third") == run.set_aside(20, 3)
    set_aside(run, 10, "other")
    assert [(one.step, one.number, one.why) for one in asides(run)] == [(10, 1, "other"), (20, 2, "second"), (20, 3, "third")]


def test_no_folder_or_file_of_that_name_is_replaced(run):
    save(run, 30)
    run.set_aside(30, 1).write_text("a file")
    run.set_aside(30, 2).mkdir()
    assert set_aside(run, 30, "x") == run.set_aside(30, 3)
    save(run, 30)

    class Raced(FakeSyscalls):
        def rename(self, source, target):
            if target == run.set_aside(30, 4):
                target.mkdir()
                (target / "f").write_text("came first")
            super().rename(source, target)

    assert set_aside(run, 30, "x", calls=Raced()) == run.set_aside(30, 5)


def test_an_empty_folder_that_came_meanwhile_is_not_replaced(run, monkeypatch):
    run.set_aside(20, 1).mkdir()
    monkeypatch.setattr("slurmtrain.store.aside.asides", lambda _: [])
    assert set_aside(run, 20, "x") == run.set_aside(20, 2)
    assert list(run.set_aside(20, 1).iterdir()) == []


def test_a_note_that_cannot_be_written_is_missed_by_nobody(run):
    folder = set_aside(run, 20, "full", calls=FakeSyscalls(refusals=[Refusal(errno.ENOSPC, calls=("create",))]))
    assert asides(run) == [Aside(20, 1, folder)]
    (folder / "aside.json").write_bytes(b'{"why"')
    assert asides(run) == [Aside(20, 1, folder)]


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EIO])
def test_where_nothing_can_be_renamed_it_is_an_error_and_all_stays(run, code):
    before = tree(run.checkpoints)
    with pytest.raises(OSError) as caught:  # noqa: PT011
        set_aside(run, 20, "x", calls=FakeSyscalls(refusals=[Refusal(code, times=None)]))
    assert caught.value.errno == code
    assert tree(run.checkpoints) == before


def test_one_that_is_not_there_is_an_error(run):
    with pytest.raises(FileNotFoundError):
        set_aside(run, 30, "x")


def test_no_folder_no_asides(tmp_path):
    assert asides(RunDir(tmp_path / "gone")) == []


def test_retention_leaves_them_alone_and_one_moved_back_is_a_checkpoint_again(run):
    set_aside(run, 10, "left behind")
    save(run, 30)
    retain(run, RetentionPolicy(1), 30)
    assert [one.step for one in asides(run)] == [10]
    run.set_aside(10, 1).rename(run.checkpoint(10))
    assert verify(run.checkpoint(10)) == []
