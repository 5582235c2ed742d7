"""A checkpoint that somebody reads stays; whoever cannot say so reads all the same; the dead block nothing for ever."""

from __future__ import annotations

import errno
import json
import os

import pytest

from slurmtrain.rundir import RunDir
from slurmtrain.store.leases import SKEW_SECONDS, UNREADABLE_SECONDS, lease, leased, pin
from tests.fakes.clock import FakeClock
from tests.fakes.syscalls import FakeSyscalls, Refusal
from tests.store.checkpoints import save


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path)
    save(run, 10)
    save(run, 20)
    return run


def test_no_leases_where_nobody_reads(run, tmp_path):
    assert leased(run, 0.0) == set()
    assert leased(RunDir(tmp_path / "gone"), 0.0) == set()


def test_a_lease_holds_while_its_block_runs_and_leaves_nothing(run):
    clock = FakeClock()
    with lease(run, 10, "ckpt copy", clock=clock) as note:
        assert note is None
        assert leased(run, clock.time()) == {10}
        with lease(run, 10, "another", clock=clock), lease(run, 20, "another", clock=clock):
            assert leased(run, clock.time()) == {10, 20}
        assert leased(run, clock.time()) == {10}
    assert leased(run, clock.time()) == set()
    assert list(run.leases.iterdir()) == []


def test_a_lease_ends_with_an_error_too(run):
    with pytest.raises(KeyError), lease(run, 10, "x"):
        raise KeyError
    assert list(run.leases.iterdir()) == []


def test_the_file_is_the_documented_one(run):
    clock = FakeClock()
    pin(run, 10, "ada: branch to other/run", 50, clock=clock)
    (file,) = run.leases.iterdir()
    assert file.name.startswith("step-00000010.")
    assert file.suffix == ".json"
    assert json.loads(file.read_bytes()) == {"v": 1, "by": "ada: branch to other/run", "until": clock.time() + 50}


def test_a_lease_of_a_reader_that_was_killed_ends_and_is_swept(run):
    clock = FakeClock()
    pin(run, 10, "killed", 50, clock=clock)
    assert leased(run, clock.time() + 50 + SKEW_SECONDS - 1) == {10}, "clocks of machines differ"
    assert leased(run, clock.time() + 50 + SKEW_SECONDS + 1) == set()
    assert list(run.leases.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"v":1}', b'{"until":"soon"}', b'{"until":NaN}', b"\xff"])
def test_a_lease_that_cannot_be_read_counts_for_a_while(run, content):
    run.leases.mkdir()
    path = run.lease(10, "abc")
    path.write_bytes(content)
    now = path.stat().st_mtime
    assert leased(run, now + 1) == {10}
    assert leased(run, now + UNREADABLE_SECONDS + 1) == set()
    assert not path.exists()


def test_other_files_are_no_leases_and_what_a_killed_writer_left_is_swept(run):
    run.leases.mkdir()
    (run.leases / "notes.txt").write_text("mine")
    half = run.leases / ".step-00000010.abc.json.123.tmp"
    half.write_bytes(b'{"v"')
    now = half.stat().st_mtime
    assert leased(run, now) == set()
    assert leased(run, now + UNREADABLE_SECONDS + 1) == set()
    assert [p.name for p in run.leases.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["mkdir", "create", "fsync"])
def test_who_may_not_write_there_reads_without_and_is_told(run, code, call):
    with lease(run, 10, "x", calls=FakeSyscalls(refusals=[Refusal(code, calls=(call,))])) as note:
        assert note == f"{run.leases}: {os.strerror(code)}: read without a lease, so the run may remove step 10 meanwhile"
    assert leased(run, 0.0) == set()


def test_a_lease_that_cannot_be_given_back_ends_by_itself(run):
    clock = FakeClock()
    with lease(run, 10, "x", clock=clock, seconds=9, calls=FakeSyscalls(refusals=[Refusal(errno.EIO, calls=("unlink",))])):
        pass
    assert leased(run, clock.time()) == {10}
    assert leased(run, clock.time() + 9 + SKEW_SECONDS + 1, calls=FakeSyscalls(refusals=[Refusal(errno.EROFS, times=None)])) == set()
    assert len(list(run.leases.iterdir())) == 1
    assert leased(run, clock.time() + 9 + SKEW_SECONDS + 1) == set()
    assert list(run.leases.iterdir()) == []
