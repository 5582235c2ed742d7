"""Copies on a node: whole or not there, compared by their sums, made once for all ranks; what does not fit is read where it is."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from slurmtrain.data.source import open_source
from slurmtrain.data.staging import ALONE, Node, Staged, stage_sources
from slurmtrain.data.summary import summarize
from slurmtrain.errors import DataError
from tests.data.token_files import write_folder, write_hdf5, write_pair
from tests.fakes.disk import FakeDisk

DOCUMENTS = [[1, 2, 256], [3, 256]]
MARKS = [[0, 1, 1], [1, 1]]


@pytest.fixture
def scratch(tmp_path):
    return tmp_path / "scratch"


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def inodes(folder: Path) -> dict[str, int]:
    return {name: (folder / name).stat().st_ino for name in files(folder)}


@pytest.mark.parametrize("make, name", [(write_folder, "tokens"), (write_pair, "web"), (write_hdf5, "t.h5")])
def test_a_copy_holds_the_same_and_is_used_again(tmp_path, scratch, make, name):
    shared = make(tmp_path / name, DOCUMENTS, marks=MARKS)
    staged = stage_sources([shared], None, Node(scratch))
    assert staged.notes == ()
    copy = staged.paths[0]
    assert scratch in copy.parents
    assert summarize(copy).sum == summarize(shared).sum
    for path in shared.parent.glob(f"{name}*"):
        if path.is_file():
            path.unlink()
    assert open_source(copy, vocab=257).read(0, 5).tolist() == [1, 2, 256, 3, 256]
    assert open_source(copy, vocab=257).answers(0, 5).tolist() == [False, True, True, True, True]
    shared = make(tmp_path / name, DOCUMENTS, marks=MARKS)
    before = inodes(scratch)
    assert stage_sources([shared], None, Node(scratch)) == staged
    assert inodes(scratch) == before, "the second attempt copies nothing"
    assert (scratch / f"slurmtrain-{os.getuid()}").stat().st_mode & 0o077 == 0


def test_other_tokens_of_the_same_name_get_a_copy_of_their_own(tmp_path, scratch):
    first = stage_sources([write_folder(tmp_path / "tokens", DOCUMENTS)], None, Node(scratch))
    second = stage_sources([write_folder(tmp_path / "tokens", [[9, 9, 256]])], None, Node(scratch))
    assert first.paths != second.paths
    assert open_source(second.paths[0]).read(0, 3).tolist() == [9, 9, 256]


def test_what_is_over_the_bound_is_read_where_it_is_with_a_note(tmp_path, scratch):
    small, large = write_folder(tmp_path / "small", DOCUMENTS), write_folder(tmp_path / "large", [[1] * 5000])
    size = sum(path.stat().st_size for path in small.iterdir())
    staged = stage_sources([large, small], size, Node(scratch))
    assert staged.paths[0] == large
    assert scratch in staged.paths[1].parents
    assert len(staged.notes) == 1
    assert f"{large} is read where it is" in staged.notes[0]
    assert f"more than the {size} left of data.stage_bytes" in staged.notes[0]


def test_a_disk_without_room_is_seen_before_anything_is_written(tmp_path, scratch, monkeypatch):
    monkeypatch.setattr("slurmtrain.data.staging.shutil.disk_usage", lambda _: Free(10))
    shared = write_folder(tmp_path / "tokens", DOCUMENTS)
    staged = stage_sources([shared], None, Node(scratch))
    assert staged.paths == (shared,)
    assert "do not fit" in staged.notes[0]
    assert "has 10 free" in staged.notes[0]
    assert files(scratch) == []


class Free:
    """What shutil.disk_usage gives."""

    def __init__(self, free: int) -> None:
        self.free = free


@pytest.mark.parametrize("method", ["write", "publish_dir"])
def test_a_disk_that_fails_leaves_nothing_and_the_run_reads_where_the_tokens_are(tmp_path, scratch, method):
    shared = write_folder(tmp_path / "tokens", DOCUMENTS)
    staged = stage_sources([shared], None, Node(scratch, disk=FakeDisk({method: None}, errno.ENOSPC)))
    assert staged.paths == (shared,)
    assert "No space left on device" in staged.notes[0]
    assert files(scratch) == []


def test_tokens_that_are_damaged_at_their_source_are_an_error_and_never_copied(tmp_path, scratch):
    shared = write_folder(tmp_path / "tokens", DOCUMENTS)
    (shared / "tokens.bin").write_bytes(np.array([1, 2, 256, 4, 256], "<u2").tobytes())
    with pytest.raises(DataError, match=r"tokens\.bin: damaged: its sum differs"):
        stage_sources([shared], None, Node(scratch))
    assert files(scratch) == []


def test_a_source_that_goes_away_meanwhile_is_an_error_for_all(tmp_path, scratch, monkeypatch):
    shared = write_folder(tmp_path / "tokens", DOCUMENTS)
    monkeypatch.setattr("slurmtrain.data.staging._files", lambda source: [source.path / "gone"])
    with pytest.raises(DataError, match="gone: No such file or directory"):
        stage_sources([shared], None, Node(scratch))


def test_a_copy_that_reads_back_differently_is_not_used(tmp_path, scratch, monkeypatch):
    shared = write_folder(tmp_path / "tokens", DOCUMENTS)

    def lying(path):
        data = bytearray(path.read_bytes())
        data[0] ^= 1
        path.write_bytes(data)

    monkeypatch.setattr("slurmtrain.data.staging.fsync_file", lying)
    staged = stage_sources([shared], None, Node(scratch))
    assert staged.paths == (shared,)
    assert "reads back differently" in staged.notes[0]
    assert files(scratch) == []


def test_a_copy_that_is_short_is_made_again(tmp_path, scratch):
    shared = write_folder(tmp_path / "tokens", DOCUMENTS)
    copy = stage_sources([shared], None, Node(scratch)).paths[0]
    os.truncate(copy / "tokens.bin", 2)
    assert stage_sources([shared], None, Node(scratch)).paths == (copy,)
    assert open_source(copy).read(0, 5).tolist() == [1, 2, 256, 3, 256]


def test_half_copies_of_dead_processes_are_removed_and_those_of_living_ones_are_left(tmp_path, scratch):
    shared = write_folder(tmp_path / "tokens", DOCUMENTS)
    copy = stage_sources([shared], None, Node(scratch)).paths[0]
    dead, living = (copy.with_name(f".{copy.name}.{pid}.tmp") for pid in (2**22 + 1, 1))
    dead.mkdir()
    living.mkdir()
    stage_sources([shared], None, Node(scratch))
    assert not dead.exists()
    assert living.exists()


def test_another_job_that_publishes_first_is_as_good(tmp_path, scratch):
    shared = write_folder(tmp_path / "tokens", DOCUMENTS)
    copy = stage_sources([shared], None, Node(scratch)).paths[0]
    aside = copy.rename(copy.with_name("aside"))

    class Racing(FakeDisk):
        def publish_dir(self, staging, final):
            aside.rename(final)
            super().publish_dir(staging, final)

    staged = stage_sources([shared], None, Node(scratch, disk=Racing()))
    assert staged == Staged((copy,), ())


def test_scratch_may_be_told_by_a_variable_of_the_node(tmp_path, scratch, monkeypatch):
    shared = write_folder(tmp_path / "tokens", DOCUMENTS)
    monkeypatch.setenv("NODE_DISK", str(scratch))
    assert scratch in stage_sources([shared], None, Node(Path("$NODE_DISK"))).paths[0].parents
    monkeypatch.delenv("NODE_DISK")
    staged = stage_sources([shared], None, Node(Path("$NODE_DISK")))
    assert staged.paths == (shared,)
    assert "$NODE_DISK is not set" in staged.notes[0]


def test_without_scratch_there_is_a_note(tmp_path):
    shared = write_folder(tmp_path / "tokens", DOCUMENTS)
    staged = stage_sources([shared], None, ALONE)
    assert staged.paths == (shared,)
    assert "no paths.scratch" in staged.notes[0]


@pytest.mark.parametrize("damage", [False, True])
def test_one_rank_of_the_node_copies_and_all_get_its_answer(tmp_path, scratch, damage):
    shared = write_folder(tmp_path / "tokens", DOCUMENTS)
    if damage:
        os.truncate(shared / "tokens.bin", 2)
    box, ready = [], threading.Event()
    answers: dict[int, object] = {}

    def share(value):
        if value is not None:
            box.append(value)
            ready.set()
        assert ready.wait(30)
        return box[0]

    def rank(number):
        try:
            answers[number] = stage_sources([shared], None, Node(scratch, copier=number == 0, share=share))
        except DataError as error:
            answers[number] = str(error)

    ranks = [threading.Thread(target=rank, args=(number,)) for number in (2, 1, 0)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    assert len(box) == 1
    assert answers[0] == answers[1] == answers[2]
    assert isinstance(answers[0], str if damage else Staged)
