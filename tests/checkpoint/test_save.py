"""All ranks save together, standing still; a failure of any is the same outcome on all, and nothing half is ever seen."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from slurmtrain.checkpoint.group import SoloGroup
from slurmtrain.checkpoint.saver import ArraySource, Piece
from slurmtrain.checkpoint.staged import AsyncSaver
from slurmtrain.checkpoint.sync import SyncSaver
from slurmtrain.errors import CheckpointError, OwnershipError
from slurmtrain.rundir import RunDir
from slurmtrain.store.listing import newest_verified, steps_present
from slurmtrain.store.verify import verify
from tests.checkpoint.arrays import begin, header, pieces, save_step, source, terms, wrong_tensors
from tests.fakes.syscalls import FakeSyscalls, Refusal
from tests.fakes.thread_group import run_ranks

ROOT = Path(__file__).resolve().parents[2]


def names(run):
    return sorted(p.name for p in run.checkpoints.iterdir()) if run.checkpoints.exists() else []


@pytest.mark.parametrize("size", [1, 2, 5])
def test_what_all_ranks_save_is_found_and_right(tmp_path, size):
    run = RunDir(tmp_path)
    results = run_ranks(size, lambda group: save_step(run, 10, group))
    assert len({(one.ok, one.bytes, one.notes, one.error) for one in results}) == 1
    found = newest_verified(run.checkpoints)
    assert found is not None
    assert sorted(found.manifest.files) == [f"rank-{rank:05d}.h5" for rank in range(size)]
    assert results[0].bytes == sum((found.folder / name).stat().st_size for name in found.manifest.files)
    assert wrong_tensors(found) == []
    assert (found.manifest.tokens, found.manifest.t, found.manifest.state) == (80, 100.0, {"position": 40})
    assert sorted(path.name for path in found.folder.iterdir()) == ["manifest.json", *sorted(found.manifest.files)]


def shared_file(run, group, sizes, step=10, calls=None):
    """A save in which runs of ranks of these sizes share a file; what was said."""
    saver = SyncSaver(terms(run), group, group.part(sizes), **({"calls": calls} if calls else {}))
    outcome = begin(saver, step, group)
    saver.close()
    return outcome


@pytest.mark.parametrize("sizes", [(4,), (2, 2), (1, 3)])
def test_ranks_that_share_a_file(tmp_path, sizes):
    run = RunDir(tmp_path)
    assert all(one.ok for one in run_ranks(4, lambda group: shared_file(run, group, sizes)))
    found = newest_verified(run.checkpoints)
    assert sorted(found.manifest.files) == [f"rank-{sum(sizes[:i]):05d}.h5" for i in range(len(sizes))]
    assert wrong_tensors(found) == []
    assert names(run) == ["step-00000010"]


def test_one_rank_of_a_shared_file_that_fails_is_named(tmp_path):
    run = RunDir(tmp_path)

    def body(group):
        mates = group.part((2, 2))
        saver = SyncSaver(terms(run), group, mates)
        what = source(10, group.rank, 4)
        saver.prepare(what)
        if group.rank == 3:
            what.copy_to = lambda *_: (_ for _ in ()).throw(RuntimeError("device\nlost"))
        outcome = saver.begin(header(10, 4), what)
        saver.close()
        return outcome.error

    assert set(run_ranks(4, body)) == {"checkpoint of step 10 not saved: rank 3: RuntimeError: device lost"}
    assert names(run) == []


def test_files_are_laid_out_anew_when_the_boxes_change_on_one_rank(tmp_path):
    run = RunDir(tmp_path)

    def body(group):
        saver = SyncSaver(terms(run), group)
        assert begin(saver, 10, group).ok
        more = [Piece("model/late", (7,), pieces(20, 0, 1)[1].box.__class__((0,), (7,)), "float32", np.arange(7, dtype=np.float32))]
        grown = ArraySource([*pieces(20, group.rank, group.size), *(more if group.rank == 1 else [])])
        outcome = saver.begin(header(20, 2), grown)
        saver.close()
        return outcome

    assert all(one.ok for one in run_ranks(2, body))
    found = newest_verified(run.checkpoints)
    assert wrong_tensors(found) == []
    assert found.manifest.tensors["model/late"].shape == (7,)


def test_retention_keeps_the_newest(tmp_path):
    run = RunDir(tmp_path)
    for step in (10, 20, 30, 100):
        save_step(run, step, SoloGroup(), keep=2)
    assert names(run) == ["step-00000030", "step-00000100"]


def test_a_step_that_is_there_is_said_and_kept(tmp_path):
    run = RunDir(tmp_path)
    save_step(run, 10, SoloGroup())
    results = run_ranks(2, lambda group: save_step(run, 10, group, attempt=2))
    assert [(one.ok, one.bytes, one.notes) for one in results] == [(True, 0, ("step 10 is there already and verifies",))] * 2
    assert newest_verified(run.checkpoints).manifest.attempt == 1


@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("call", ["create", "pwrite", "fsync", "close"])
def test_a_full_disk_on_one_rank_is_the_same_outcome_on_all_and_soon(tmp_path, failing, call):
    run = RunDir(tmp_path)
    run_ranks(3, lambda group: save_step(run, 10, group))
    refusal = Refusal(errno.ENOSPC, calls=(call,), path=f"rank-{failing:05d}")
    calls = FakeSyscalls(run.path, refusals=[refusal])
    start = time.monotonic()
    outcomes = run_ranks(3, lambda group: save_step(run, 20, group, calls=calls))
    assert time.monotonic() - start < 10
    where = run.staging(20, 1) / f"rank-{failing:05d}.h5"
    expected = f"checkpoint of step 20 not saved: rank {failing}: {where}: No space left on device"
    assert [(one.ok, one.error) for one in outcomes] == [(False, expected)] * 3
    assert names(run) == ["step-00000010"]
    run_ranks(3, lambda group: save_step(run, 20, group))
    assert names(run) == ["step-00000010", "step-00000020"]


FULL = """
import json, resource, signal, sys
from pathlib import Path
import numpy as np
from slurmtrain.boxes import whole
from slurmtrain.checkpoint.group import SoloGroup
from slurmtrain.checkpoint.saver import ArraySource, Piece
from slurmtrain.checkpoint.staged import AsyncSaver
from slurmtrain.checkpoint.sync import SyncSaver
from slurmtrain.rundir import RunDir
from tests.checkpoint.arrays import header, terms
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
pieces = [Piece(f"w{i}", (300_000,), whole((300_000,)), "float32", np.ones(300_000, np.float32)) for i in range(3)]
outcome = SyncSaver(terms(RunDir(Path(sys.argv[1]))), SoloGroup()).begin(header(10, 1), ArraySource(pieces))
files = [str(p.readlink()) for p in Path("/proc/self/fd").iterdir() if p.is_symlink()]
print(json.dumps([outcome.error, sum("rank-00000" in name for name in files)]))
"""


@pytest.mark.parametrize("limit", [1000, 2_000_000, 3_600_900])
def test_a_disk_that_is_full_anywhere_is_one_line_and_leaves_no_open_file(tmp_path, limit):
    """A file-size limit stands for a full disk: at the first bytes, in the middle, and near the end."""
    argv = [sys.executable, "-c", FULL, str(tmp_path), str(limit)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    message, still_open = json.loads(done.stdout)
    staging = RunDir(tmp_path).staging(10, 1)
    assert message == f"checkpoint of step 10 not saved: rank 0: {staging}/rank-00000.h5: {os.strerror(errno.EFBIG)}"
    assert still_open == 0
    assert names(RunDir(tmp_path)) == []


@pytest.mark.parametrize("call, path", [("pwrite", "manifest"), ("fsync", "manifest"), ("rename", ".tmp"), ("mkdir", ".tmp")])
def test_a_disk_that_refuses_to_publish_is_the_same_outcome_on_all(tmp_path, call, path):
    run = RunDir(tmp_path)
    calls = FakeSyscalls(tmp_path, refusals=[Refusal(errno.EDQUOT, calls=(call,), path=path)])
    outcomes = run_ranks(2, lambda group: save_step(run, 10, group, calls=calls))
    assert len({(one.ok, one.error) for one in outcomes}) == 1
    assert outcomes[1].error.startswith(f"checkpoint of step 10 not saved: {os.strerror(errno.EDQUOT)}: ")
    assert names(run) == []


def test_trouble_with_old_checkpoints_is_told_and_does_not_fail_the_save(tmp_path):
    run = RunDir(tmp_path)
    save_step(run, 10, SoloGroup())
    calls = FakeSyscalls(tmp_path, refusals=[Refusal(errno.EACCES, calls=("rename",), path="step-00000010")])
    outcome = save_step(run, 20, SoloGroup(), keep=1, calls=calls)
    assert (outcome.ok, outcome.notes) == (True, (f"{run.checkpoint(10)}: not removed: Permission denied",))


def test_an_attempt_that_lost_the_run_raises_on_all_ranks_and_publishes_nothing(tmp_path):
    run, calls = RunDir(tmp_path), []

    def taken_over_during_the_save():
        calls.append(1)
        if len(calls) > 1:
            raise OwnershipError("attempt 3 owns this run")

    errors = run_ranks(2, lambda group: save_step(run, 10, group, attempt=2, owner_check=taken_over_during_the_save))
    assert [(type(one), str(one)) for one in errors] == [(OwnershipError, "attempt 3 owns this run")] * 2
    assert len(calls) == 2
    assert names(run) == []


def test_the_owner_is_read_from_the_run(tmp_path):
    run = RunDir(tmp_path)
    run.owner_json.write_text(json.dumps({"job_id": "7", "restart_count": 0, "attempt": 2, "host": "h", "pid": 1, "t": 0.0}))
    assert save_step(run, 10, SoloGroup(), attempt=2).ok
    with pytest.raises(OwnershipError, match=r"belongs to job 7, attempt 2, pid 1 on h now: attempt 1 leaves"):
        save_step(run, 20, SoloGroup(), attempt=1)
    assert names(run) == ["step-00000010"]


@pytest.mark.parametrize("sizes", [(1, 1), (2,)])
def test_ranks_that_disagree_on_a_tensor_are_refused(tmp_path, sizes):
    run = RunDir(tmp_path)

    def body(group):
        mates = group.part(sizes)
        saver = SyncSaver(terms(run), group, mates)
        changed = [
            Piece(p.name, (999,), p.box, p.dtype, p.array) if group.rank == 1 and p.name == "model/norm" else p
            for p in pieces(10, group.rank, 2)
        ]
        return saver.begin(header(10, 2), ArraySource(changed)).error

    first, second = run_ranks(2, body)
    assert first == second
    assert "model/norm: ((999,), 'float32') on rank 1, ((600,), 'float32') on a lower rank" in first
    assert names(run) == []


def test_one_rank_that_disagrees_with_itself_is_refused():
    one, other = (Piece("w", shape, pieces(1, 0, 1)[1].box, "float32", np.zeros(600, np.float32)) for shape in ((600,), (700,)))
    with pytest.raises(CheckpointError, match=r"w: \(\(600,\), 'float32'\) and \(\(700,\), 'float32'\) on one rank"):
        ArraySource([one, other])


@pytest.mark.parametrize("sizes", [(1, 1), (2,)])
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_a_state_that_is_not_finite_is_not_saved_unless_asked(tmp_path, sizes, bad):
    run = RunDir(tmp_path)

    def body(group, **more):
        mates = group.part(sizes)
        saver = SyncSaver(terms(run, **more), group, mates)
        what = pieces(10, group.rank, 2)
        if group.rank == 1:
            what[0].array[-1, -1] = bad
        outcome = saver.begin(header(10, 2), ArraySource(what))
        saver.close()
        return outcome

    refused = "checkpoint of step 10 not saved: rank 1: model/w holds numbers that are not finite"
    assert [one.error for one in run_ranks(2, body)] == [refused] * 2
    assert names(run) == []
    assert all(one.ok for one in run_ranks(2, lambda group: body(group, allow_nonfinite=True)))
    assert names(run) == ["step-00000010"]


def test_no_room_is_found_out_before_anything_is_written(tmp_path):
    from slurmtrain.config.site import SiteStorage

    run = RunDir(tmp_path)
    storage = SiteStorage(quota_command="echo 1000000 -")

    def body(group):
        return begin(SyncSaver(terms(run, storage=storage), group, calls=calls), 10, group).error

    calls = FakeSyscalls(tmp_path)
    first, second = run_ranks(2, body)
    assert first == second
    assert "MiB needed" in first
    assert "says echo" in first
    assert names(run) == []
    assert not [path for name, path in calls.asked if name == "create"]


def test_fifty_signals_during_saves_harm_nothing(tmp_path):
    """Case C20: a handler that only counts runs all through the saves (system calls are interrupted); all checkpoints are right."""
    run, seen, step = RunDir(tmp_path), [], 0
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.0007)
    try:
        while len(seen) < 50 or step < 30:
            step += 10
            assert save_step(run, step, SoloGroup(), keep=100).ok
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    steps = steps_present(run.checkpoints)
    assert steps == list(range(10, step + 1, 10))
    assert [verify(run.checkpoint(one)) for one in steps] == [[]] * len(steps)
    assert wrong_tensors(newest_verified(run.checkpoints)) == []


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_run_folder_that_is_gone_fails_the_save_and_is_not_begun_anew(tmp_path, way):
    run, away = RunDir(tmp_path / "run"), tmp_path / "away"
    run.path.mkdir()

    def body(group):
        saver = (SyncSaver if way == "sync" else AsyncSaver)(terms(run), group)

        def save(step):
            outcome = begin(saver, step, group)
            return outcome or saver.wait()[0]

        try:
            assert save(10).ok
            if group.rank == 0:
                run.path.rename(away)
            group.barrier()
            failed = save(20)
            group.barrier()
            assert not run.path.exists()
            group.barrier()
            if group.rank == 0:
                away.rename(run.path)
            group.barrier()
            return failed, save(30).ok
        finally:
            saver.close()

    for failed, ok in run_ranks(2, body):
        assert (failed.ok, ok) == (False, True)
        assert "the run's folder is gone" in failed.error
    assert steps_present(run.checkpoints) == [10, 30]
    assert wrong_tensors(newest_verified(run.checkpoints)) == []
