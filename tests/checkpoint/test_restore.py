"""All ranks load the same checkpoint, the newest that can be loaded, or all hear the same error (case C48)."""

from __future__ import annotations

import json
import os
import shutil
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import xxhash

from slurmtrain.checkpoint import restore as restore_module
from slurmtrain.checkpoint import skeleton
from slurmtrain.checkpoint.group import SoloGroup
from slurmtrain.checkpoint.load import PartReader, Wish
from slurmtrain.checkpoint.restore import restore
from slurmtrain.errors import CheckpointError, ConfigError, CorruptCheckpointError, DataError, UnreadableCheckpointError
from slurmtrain.rundir import RunDir
from slurmtrain.store.leases import leased
from tests.checkpoint.arrays import SHAPES, values
from tests.checkpoint.stored import flip, store, with_chunks
from tests.checkpoint.tilings import part_of
from tests.fakes.thread_group import run_ranks

SHARD = "rank-00001.h5"
HELD = "the file holds model/w, model/norm, optimizer/norm/exp_avg"


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Checkpoints of steps 10, 20, 30, in three files each."""
    run = RunDir(tmp_path_factory.mktemp("three"))
    for step in (10, 20, 30):
        store(run.checkpoint(step), step, {name: values(name, step) for name in SHAPES}, files=3)
    return run


@pytest.fixture
def run(tmp_path, three):
    shutil.copytree(three.checkpoints, tmp_path / "checkpoints")
    return RunDir(tmp_path)


def load_all(found):
    """Load and check every tensor."""
    wishes = [Wish(part_of(name, shape), "float32", np.zeros(shape, np.float32)) for name, shape in SHAPES.items()]
    with PartReader(found.folder, found.manifest) as reader:
        reader.fill_all(wishes)
    for wish in wishes:
        assert wish.target.tobytes() == values(wish.part.name, found.step).tobytes()


def rewrite(folder: Path, change) -> None:
    """Change the manifest and seal it again."""
    path = folder / "manifest.json"
    raw = json.loads(path.read_bytes())
    change(raw)
    del raw["xxh3_64"]
    body = json.dumps(raw, separators=(",", ":")).encode()
    path.write_bytes(body[:-1] + b',"xxh3_64":"' + xxhash.xxh3_64_hexdigest(body).encode() + b'"}\n')


def damage(kind: str, folder: Path) -> None:  # noqa: C901 a table of deeds
    path, manifest = folder / SHARD, folder / "manifest.json"
    data = path.read_bytes()
    match kind:
        case "missing":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "truncated":
            path.write_bytes(data[:-1])
        case "flipped bit":
            flip(path, len(data) // 2, 4)
        case "flipped bit of the structure":
            flip(path, 9)
        case "pipe":
            path.unlink()
            os.mkfifo(path)
        case "no manifest":
            manifest.unlink()
        case "flipped bit of the manifest":
            flip(manifest, 100)
        case "manifest of another step":
            rewrite(folder, lambda raw: raw.update(step=31))
        case "index that does not hold":
            rewrite(folder, lambda raw: raw["tensors"]["model/norm"][2].pop())
        case "foreign manifest":
            manifest.write_bytes(b'{"metadata": {}}')
        case "pipe for a manifest":
            manifest.unlink()
            os.mkfifo(manifest)


REASONS = {
    "missing": f"{SHARD}: No such file or directory",
    "empty": f"{SHARD}: 0 bytes, ",
    "truncated": " were written",
    "flipped bit": f"{SHARD}: chunk 0 (bytes 0 to ",
    "flipped bit of the structure": f"{SHARD}: chunk 0 (bytes 0 to ",
    "pipe": f"{SHARD}: not a file",
    "no manifest": "manifest.json: No such file or directory",
    "flipped bit of the manifest": "manifest.json: ",
    "manifest of another step": "step 31 in a folder of step 30",
    "index that does not hold": "model/norm: 200 of 600 elements are in no box",
    "foreign manifest": "manifest.json: not a manifest",
    "pipe for a manifest": "manifest.json: not a file",
}


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("kind", REASONS)
def test_the_one_before_a_damaged_one_is_loaded_and_the_damaged_one_set_aside(run, kind, size):
    damage(kind, run.checkpoint(30))
    aside, loaded = [], []

    def load(found):
        load_all(found)
        loaded.append(found.step)

    results = run_ranks(size, lambda group: restore(run.checkpoints, group, load, set_aside=lambda *more: aside.append(more)))
    assert [one.step for one in results] == loaded == [20] * size
    ((step, why),) = results[0].passed_over
    assert all(one.passed_over == results[0].passed_over for one in results)
    assert step == 30
    assert REASONS[kind] in why
    assert aside == [(30, why)]


def test_what_one_rank_alone_finds_turns_all(run):
    flip(run.checkpoint(30) / SHARD, 70_000)
    tried = []

    def load(rank, found):
        tried.append((rank, found.step))
        if rank == 2:
            load_all(found)

    results = run_ranks(4, lambda group: restore(run.checkpoints, group, partial(load, group.rank)))
    assert sorted(tried) == [(rank, step) for rank in range(4) for step in (20, 30)]
    assert {(one.step, one.passed_over) for one in results} == {(20, results[0].passed_over)}
    path = run.checkpoint(30) / SHARD
    assert results[0].passed_over[0][1].startswith(f"rank 2: model/w, model/norm, optimizer/norm/exp_avg: {path}: chunk 0 ")


def test_the_newest_is_loaded_where_nothing_is_wrong(run):
    results = run_ranks(2, lambda group: restore(run.checkpoints, group, load_all, set_aside=lambda *_: pytest.fail("it is whole")))
    assert [(one.step, one.folder, one.passed_over) for one in results] == [(30, run.checkpoint(30), ())] * 2
    assert results[1].manifest.tokens == 240


def test_where_there_is_none_all_hear_it(tmp_path):
    assert run_ranks(3, lambda group: restore(tmp_path / "none", group, load_all)) == [None] * 3


def test_where_none_can_be_loaded_nothing_is_set_aside_and_all_hear_why(run):
    for step, kind in ((10, "missing"), (20, "flipped bit"), (30, "no manifest")):
        damage(kind, run.checkpoint(step))
    errors = run_ranks(2, lambda group: restore(run.checkpoints, group, load_all, set_aside=lambda *_: pytest.fail("nothing is loaded")))
    assert [type(one) for one in errors] == [CorruptCheckpointError] * 2
    assert len({str(one) for one in errors}) == 1
    for words in (
        "no checkpoint verifies: mend one",
        "(step 30: ",
        "; step 20: ",
        "; step 10: rank-00001.h5: No such file",
        "move the folder away",
    ):
        assert words in str(errors[1])


@pytest.mark.parametrize("step", [10, 30])
def test_one_step_alone_may_be_asked_for(run, step):
    results = run_ranks(2, lambda group: restore(run.checkpoints, group, load_all, step=step))
    assert [(one.step, one.passed_over) for one in results] == [(step, ())] * 2


def test_the_step_that_was_asked_for_is_not_replaced_by_another(run):
    damage("flipped bit", run.checkpoint(20))
    errors = run_ranks(2, lambda group: restore(run.checkpoints, group, load_all, step=20, set_aside=lambda *_: pytest.fail("no")))
    assert [type(one) for one in errors] == [CorruptCheckpointError] * 2
    assert "the checkpoint of step 20 does not verify: `slurmtrain ckpt list` shows the others (step 20: " in str(errors[0])
    assert run_ranks(2, lambda group: restore(run.checkpoints, group, load_all, step=25)) == [None] * 2


@pytest.mark.parametrize(
    "error, kind",
    [
        (ConfigError("another optimizer made it", where="job", key="optimizer.name"), ConfigError),
        (CheckpointError("model/w: not in manifest.json"), CheckpointError),
        (DataError("the corpus changed"), DataError),
    ],
)
def test_an_error_that_no_older_one_would_mend_is_raised_on_all_ranks(run, error, kind):
    def load(rank, found):
        if rank == 1:
            raise error
        raise CorruptCheckpointError("this is not what matters")

    errors = run_ranks(3, lambda group: restore(run.checkpoints, group, partial(load, group.rank)))
    assert [(type(one), str(one)) for one in errors] == [(kind, f"rank 1: {error}")] * 3


def test_what_all_ranks_say_alike_is_said_without_a_rank(run):
    def load(_):
        raise ConfigError("another optimizer made it")

    errors = run_ranks(3, lambda group: restore(run.checkpoints, group, load))
    assert [(type(one), str(one)) for one in errors] == [(ConfigError, "another optimizer made it")] * 3


def test_a_programmers_mistake_is_seen_where_it_was_made(run):
    def load(rank, found):
        if rank == 1:
            raise ZeroDivisionError("oh")

    errors = run_ranks(2, lambda group: restore(run.checkpoints, group, partial(load, group.rank)))
    assert [type(one) for one in errors] == [CheckpointError, ZeroDivisionError]
    assert str(errors[0]) == "rank 1: ZeroDivisionError: oh"


def test_what_cannot_be_read_today_is_passed_over_but_not_set_aside(run):
    def load(found):
        if found.step == 30:
            raise UnreadableCheckpointError("rank-00001.h5: Permission denied")

    def unwanted(step, why):
        pytest.fail("its bytes may be as they were")

    results = run_ranks(2, lambda group: restore(run.checkpoints, group, load, set_aside=unwanted))
    assert [(one.step, one.passed_over) for one in results] == [(20, ((30, "rank-00001.h5: Permission denied"),))] * 2


def test_a_manifest_that_may_not_be_read_or_is_too_new_is_passed_over_but_not_set_aside(run, monkeypatch):
    rewrite(run.checkpoint(20), lambda raw: raw.update(v=7))
    real = Path.read_bytes

    def refuse(path):
        if path == run.checkpoint(30) / "manifest.json":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    found = restore(run.checkpoints, SoloGroup(), load_all, set_aside=lambda *_: pytest.fail("no"))
    assert found.step == 10
    assert [step for step, _ in found.passed_over] == [30, 20]
    assert "manifest.json: Permission denied" in found.passed_over[0][1]
    assert "format version 7; this release reads up to 2" in found.passed_over[1][1]


def test_a_file_that_may_not_be_looked_at_is_passed_over_but_not_set_aside(run, monkeypatch):
    real = os.stat

    def refuse(self, **more):
        if self == run.checkpoint(30) / SHARD:
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, **more)

    monkeypatch.setattr(Path, "stat", refuse)
    found = restore(run.checkpoints, SoloGroup(), load_all, set_aside=lambda *_: pytest.fail("no"))
    assert (found.step, found.passed_over) == (20, ((30, f"{SHARD}: Permission denied: {HELD}"),))


def test_one_that_cannot_be_set_aside_is_told(run):
    damage("truncated", run.checkpoint(30))

    def set_aside(step, why):
        raise OSError(30, "Read-only file system")

    found = restore(run.checkpoints, SoloGroup(), load_all, set_aside=set_aside)
    assert found.passed_over[0][1].endswith(" (not set aside: Read-only file system)")


def test_ones_that_go_meanwhile_are_looked_for_again(run):
    """A run that trains on removes old ones and makes new ones while another looks."""
    looks, real = [], restore_module.folders_present

    def folders_present(folder):
        found = real(folder)
        looks.append(len(found))
        if len(looks) == 1:
            for step in (20, 30):
                run.checkpoint(step).rename(run.trash(step))
            store(run.checkpoint(40), 40, {name: values(name, 40) for name in SHAPES})
            found = [pair for pair in found if pair[0] != 10]
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restore_module, "folders_present", folders_present)
        found = restore(run.checkpoints, SoloGroup(), load_all)
    assert (found.step, found.passed_over, len(looks)) == (40, (), 2)


def test_it_is_leased_while_it_is_read(run):
    seen = []
    lock = threading.Lock()

    def load(_):
        with lock:
            seen.append(leased(run, 0.0))

    run_ranks(1, lambda group: restore(run.checkpoints, group, load))
    assert seen == [{30}]
    assert leased(run, 0.0) == set()


def test_a_run_folder_that_may_not_be_written_is_read_without_a_lease(run, monkeypatch):
    def refuse(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("slurmtrain.atomic.SystemDisk.write", refuse)
    assert restore(run.checkpoints, SoloGroup(), load_all).step == 30


def test_damage_where_no_tensor_lies_is_found_as_well(tmp_path, monkeypatch):
    """Chunks that hold HDF5's own bytes alone."""
    monkeypatch.setattr(skeleton, "SMALL_BYTES", 0)
    run = RunDir(tmp_path)
    for step in (10, 20):
        manifest = store(run.checkpoint(step), step, {f"g{i}/w": np.full(9, i, np.float32) for i in range(100)}, chunk_bytes=512)
        (run.checkpoint(step) / "manifest.json").write_bytes(with_chunks(manifest, run.checkpoint(step)).to_json())
    flip(run.checkpoint(20) / "rank-00000.h5", 0)

    def load(found):
        wishes = [Wish(part_of(name, (9,)), "float32", np.zeros(9, np.float32)) for name in found.manifest.tensors]
        with PartReader(found.folder, found.manifest) as reader:
            reader.fill_all(wishes)

    results = run_ranks(2, lambda group: restore(run.checkpoints, group, load))
    assert [one.step for one in results] == [10] * 2
    assert "rank-00000.h5: chunk 0 (bytes 0 to 512) differs" in results[1].passed_over[0][1]
    assert [one.step for one in run_ranks(2, lambda group: restore(run.checkpoints, group, load, policy="sizes"))] == [20] * 2


def test_the_manifest_is_read_by_one_rank(run, monkeypatch):
    opened, real = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (opened.append(path.name), real(path))[1])
    run_ranks(5, lambda group: restore(run.checkpoints, group, load_all))
    assert opened == ["manifest.json"]
