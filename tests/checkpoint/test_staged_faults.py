"""Writers that die, hang, or meet a disk that refuses: an outcome that says who and why, no litter, and the next save is sound."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import time

import pytest

from slurmtrain.checkpoint.forkserver import ForkServer
from slurmtrain.errors import OwnershipError
from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import newest_verified
from slurmtrain.store.verify import verify
from tests.checkpoint.arrays import begin, header, source, wrong_tensors
from tests.checkpoint.doors import HERE, faulty_door, held_door, until
from tests.checkpoint.staging import end_servers, gone, names, savers, told, writer_pid


@pytest.fixture(autouse=True, scope="module")
def _servers():
    yield
    end_servers()


def sound_afterwards(run, saver, group):
    """After a failed save, and with no begun one: another save succeeds, and nothing of the failed one is left."""
    assert saver.wait() == []
    assert begin(saver, 30, group) is None
    assert [(one.step, one.ok) for one in saver.wait()] == [(30, True)]
    assert names(run) == ["step-00000010", "step-00000030"]
    if group.rank == 0:
        found = newest_verified(run.checkpoints)
        assert (found.step, wrong_tensors(found), verify(run.checkpoint(10))) == (30, [], [])
    group.barrier()
    return "sound"


def kill(saver):
    pid = writer_pid(saver)
    os.kill(pid, signal.SIGKILL)
    until(lambda: gone(pid))


def first(saver, group):
    """A save that succeeds."""
    begin(saver, 10, group)
    (outcome,) = saver.wait()
    assert outcome.ok, outcome


TIMEOUT_S = 1.5
FAILED = "checkpoint of step 20 not saved: rank {}: its writer was lost (killed by SIGKILL)"


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("when", ["idle", "under way"])
def test_a_writer_that_is_killed(tmp_path, victim, when):
    run, gate = RunDir(tmp_path), tmp_path / "gate"
    gate.touch()

    def body(saver, group):
        first(saver, group)
        if when == "idle":
            if group.rank == victim:
                kill(saver)
            begin(saver, 20, group)
            assert [(one.step, one.ok) for one in saver.wait()] == [(20, True)]
            return "sound"
        if group.rank == victim:
            gate.unlink()
            gate.with_suffix(".here").unlink()
        group.barrier()
        begin(saver, 20, group)
        if group.rank == victim:
            until(gate.with_suffix(".here").exists)
            kill(saver)
            gate.touch()
        heard = told(saver) if group.rank in {0, victim} else None
        assert heard is None or (heard.step, heard.ok, heard.error) == (20, False, FAILED.format(victim))
        group.barrier()
        return sound_afterwards(run, saver, group)

    assert savers(run, 3, body, door={victim: held_door(gate)}) == ["sound"] * 3


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_writer_is_settled_by_the_next_begin_alone(tmp_path, victim):
    """Nobody polls: the next save begins soon, for its ranks tell each other."""
    run, gate = RunDir(tmp_path), tmp_path / "gate"
    gate.touch()

    def body(saver, group):
        first(saver, group)
        if group.rank == victim:
            gate.unlink()
            gate.with_suffix(".here").unlink()
        group.barrier()
        begin(saver, 20, group)
        if group.rank == victim:
            until(gate.with_suffix(".here").exists)
            kill(saver)
            gate.touch()
        start = time.monotonic()
        begin(saver, 30, group)
        assert time.monotonic() - start < 10
        return [(one.step, one.ok) for one in saver.wait()]

    assert savers(run, 2, body, door={victim: held_door(gate)}) == [[(20, False), (30, True)]] * 2
    assert names(run) == ["step-00000010", "step-00000030"]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_writer_that_hangs(tmp_path, victim):
    run = RunDir(tmp_path)

    def body(saver, group):
        first(saver, group)
        group.barrier()
        if group.rank == victim:
            os.kill(writer_pid(saver), signal.SIGSTOP)
        begin(saver, 20, group)
        heard = told(saver) if group.rank in {0, victim} else None
        group.barrier()
        rest = sound_afterwards(run, saver, group)
        return heard and heard.error, rest

    results = savers(run, 2, body, timeout_s=TIMEOUT_S)
    assert not [one for one in results if isinstance(one, BaseException)], results
    errors = {error for error, _ in results if error is not None}
    begin_of_line = f"checkpoint of step 20 not saved: rank {victim}: its writer did not end within {TIMEOUT_S} s"
    silent = f"checkpoint of step 20 not saved: no word from the writer of rank {victim} within {TIMEOUT_S} s"
    assert errors <= {begin_of_line, silent}
    assert [rest for _, rest in results] == ["sound"] * 2


REFUSED = [(errno.ENOSPC, "create"), (errno.EDQUOT, "pwrite"), (errno.EIO, "fsync"), (errno.EDQUOT, "close")]


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("code, call", REFUSED)
def test_a_disk_that_refuses_one_writer(tmp_path, code, victim, call):
    run = RunDir(tmp_path)
    refusals = [{"code": code, "calls": [call], "path": f"step-00000020.a0001.tmp/rank-{victim:05d}.h5"}]

    def body(saver, group):
        first(saver, group)
        begin(saver, 20, group)
        heard = told(saver) if group.rank in {0, victim} else None
        assert group.rank != 0 or names(run) == ["step-00000010"], "its room is free at once"
        group.barrier()
        return heard and heard.error, sound_afterwards(run, saver, group)

    where = run.staging(20, 1) / f"rank-{victim:05d}.h5"
    error = f"checkpoint of step 20 not saved: rank {victim}: {where}: {os.strerror(code)}"
    results = savers(run, 2, body, door={victim: faulty_door(refusals=refusals)})
    assert [one for one, _ in results] == ([error, None] if victim == 0 else [error, error])
    assert [rest for _, rest in results] == ["sound"] * 2


@pytest.mark.parametrize("call, path", [("mkdir", ".tmp"), ("create", "go-0002"), ("create", "manifest.json"), ("rename", ".tmp")])
def test_a_disk_that_refuses_the_writer_that_commits(tmp_path, call, path):
    run = RunDir(tmp_path)
    refusals = [{"code": errno.EDQUOT, "calls": [call], "path": path, "at": 2 if path in {".tmp", "manifest.json"} else 1}]

    def body(saver, group):
        first(saver, group)
        begin(saver, 20, group)
        heard = told(saver) if group.rank == 0 else None
        group.barrier()
        return heard and heard.error, sound_afterwards(run, saver, group)

    (error, _), *others = results = savers(run, 3, body, door={0: faulty_door(refusals=refusals)})
    assert error.startswith(f"checkpoint of step 20 not saved: {os.strerror(errno.EDQUOT)}: ")
    assert [rest for _, rest in results] == ["sound"] * 3
    assert [one for one, _ in others] == [None, None]


def test_a_disk_that_refuses_even_the_word_of_the_failure(tmp_path):
    """The rank itself tells the others then."""
    run = RunDir(tmp_path)
    refusals = [{"code": errno.ENOSPC, "calls": ["create"], "path": "step-00000020.a0001.tmp", "times": None}]

    def body(saver, group):
        first(saver, group)
        begin(saver, 20, group)
        heard = told(saver) if group.rank == 1 else None
        group.barrier()
        (outcome,) = saver.wait()
        assert not outcome.ok
        return heard and heard.error, outcome.error, sound_afterwards(run, saver, group)

    where = run.staging(20, 1) / "rank-00001.h5"
    error = f"checkpoint of step 20 not saved: rank 1: {where}: No space left on device"
    assert savers(run, 2, body, door={1: faulty_door(refusals=refusals)}) == [(None, error, "sound"), (error, error, "sound")]


def test_a_file_system_that_is_really_full(tmp_path):
    mount = tmp_path / "small"
    mount.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3500k", "tmpfs", mount], check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        run = RunDir(mount)
        run.checkpoints.mkdir()
        ballast = mount / "ballast"

        def body(saver, group):
            first(saver, group)
            ballast.write_bytes(bytes(500_000))
            begin(saver, 20, group)
            (outcome,) = saver.wait()
            assert not outcome.ok
            group.barrier()
            if group.rank == 0:
                ballast.unlink()
                (run.checkpoint(10) / "rank-00000.h5").unlink()  # room for another
            group.barrier()
            begin(saver, 30, group)
            return outcome.error, [(one.step, one.ok) for one in saver.wait()]

        results = savers(run, 2, body, keep=9)
        assert results[0] == results[1]
        assert "MiB needed" in results[0][0]
        assert results[0][1] == [(30, True)]
        assert names(run) == ["step-00000010", "step-00000030"]
    finally:
        subprocess.run(["umount", "-l", mount], check=True)


def test_all_ranks_give_a_save_up(tmp_path):
    run, gate = RunDir(tmp_path), tmp_path / "gate"
    gate.touch()

    def body(saver, group):
        first(saver, group)
        saver.fail("nothing is under way")
        group.barrier()
        if group.rank == 0:
            gate.unlink()
        group.barrier()
        begin(saver, 20, group)
        group.barrier()
        saver.fail("a person said so")
        group.barrier()
        gate.touch()
        heard = told(saver) if group.rank == 0 else None
        group.barrier()
        return heard and heard.error, sound_afterwards(run, saver, group)

    error = "checkpoint of step 20 not saved: a person said so"
    results = savers(run, 3, body, door={1: held_door(gate)})
    assert results == [(error, "sound"), (None, "sound"), (None, "sound")]


def test_a_run_that_another_attempt_owns(tmp_path):
    run = RunDir(tmp_path)

    def body(saver, group):
        first(saver, group)
        if group.rank == 0:
            run.owner_json.write_text(json.dumps({"job_id": "7", "restart_count": 0, "attempt": 2, "host": "h", "pid": 1, "t": 0.0}))
        group.barrier()
        begin(saver, 20, group)
        return saver.wait()

    errors = savers(run, 2, body)
    assert [type(one) for one in errors] == [OwnershipError] * 2
    assert len({str(one) for one in errors}) == 1
    assert "belongs to job 7, attempt 2" in str(errors[0])
    assert names(run) == ["step-00000010"]


@pytest.mark.parametrize("sizes", [(), (2,), (1, 1)])
def test_a_copy_that_fails_on_one_rank(tmp_path, sizes):
    run = RunDir(tmp_path)

    def body(saver, group):
        first(saver, group)
        what = source(20, group.rank, group.size)
        if group.rank == 1:
            what.copy_to = lambda *_: (_ for _ in ()).throw(RuntimeError("device\nlost"))
        assert saver.begin(header(20, 2), what) is None
        (outcome,) = saver.wait()
        return outcome.error, sound_afterwards(run, saver, group)

    error = "checkpoint of step 20 not saved: rank 1: RuntimeError: device lost"
    assert savers(run, 2, body, sizes=sizes) == [(error, "sound")] * 2


def test_memory_that_lacks_for_an_image(tmp_path, monkeypatch):
    run, real, left = RunDir(tmp_path), os.posix_fallocate, [1]

    def lacking(fd, offset, size):
        if size > 1_000_000 and left and left.pop():
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        real(fd, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", lacking)

    def body(saver, group):
        saver.prepare(source(10, group.rank, group.size))
        left.append(1)
        group.barrier()
        outcome = begin(saver, 10, group)
        assert saver.wait() == []
        begin(saver, 20, group)
        return outcome.ok, outcome.error, [(one.step, one.ok) for one in saver.wait()]

    results = savers(run, 2, body)
    assert results[0] == results[1]
    ok, error, later = results[0]
    assert (ok, later) == (False, [(20, True)])
    assert error.endswith("MiB of memory for a copy of the state: Cannot allocate memory")
    assert error.startswith("checkpoint of step 10 not saved: rank ")
    assert names(run) == ["step-00000020"]


def test_a_fork_server_that_died_is_replaced(tmp_path):
    run = RunDir(tmp_path)

    def body(saver, group):
        saver._link._server = ForkServer()
        first(saver, group)
        saver._link._server._process.kill()
        saver._link._server._process.wait()
        kill(saver)
        begin(saver, 20, group)
        return [(one.step, one.ok, one.error) for one in saver.wait()]

    assert savers(run, 1, body) == [[(20, True, "")]]


def test_the_writer_that_commits_dies_after_it_has_published(tmp_path):
    """Killed between the rename and its fsync: the checkpoint is there, and is made durable by the next writer."""
    run = RunDir(tmp_path)

    def body(saver, group):
        begin(saver, 10, group)
        return [(one.step, one.ok, one.notes) for one in saver.wait()]

    ((found,),) = savers(run, 1, body, door=f"{HERE}:dying_after_publish:{tmp_path / 'durable'}")
    assert found == (10, True, ("after it was published: rank 0: its writer was lost (killed by SIGKILL)",))
    assert names(run) == ["step-00000010"]
    assert verify(run.checkpoint(10)) == []
    assert (tmp_path / "durable").read_text().splitlines()[-2:] == [run.staging(10, 1).name, "checkpoints"]
