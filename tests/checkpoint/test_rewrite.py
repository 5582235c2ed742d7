"""A checkpoint in another number of files: the same bits, seen whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest

from slurmtrain.checkpoint import cuts, making, writing
from slurmtrain.checkpoint.cuts import Sizing
from slurmtrain.checkpoint.making import bytes_of, kinds_of
from slurmtrain.checkpoint.rewrite import reshard
from slurmtrain.errors import CheckpointError, CorruptCheckpointError, UserError
from slurmtrain.store.verify import read_manifest, verify
from tests.checkpoint.foreign import contents, every_kind, same
from tests.checkpoint.stored import cut_columns, cut_rows, flip, store
from tests.fakes.syscalls import Cut, FakeSyscalls, Refusal

FORMAT_1 = Path(__file__).parent / "releases" / "format-1" / "step-00000040"
STATE = {"v": 1, "position": 7, "optimizer_updates": 3}


@pytest.fixture(scope="module")
def kinds():
    return every_kind(np.random.default_rng(5))


@pytest.fixture(scope="module")
def sources(tmp_path_factory, kinds):
    """The same tensors as rows in 1 and 4 files, as columns in 3."""
    folder = tmp_path_factory.mktemp("sources")
    for files, cut in ((1, cut_rows), (4, cut_rows), (3, cut_columns)):
        store(folder / str(files), 9, kinds, files=files, cut=cut, state=STATE)
    return folder


@pytest.mark.parametrize("source", ["1", "3", "4"])
@pytest.mark.parametrize("sizing", [Sizing(files=1), Sizing(files=3), Sizing(files=7), Sizing(most_bytes=700_000)], ids=str)
def test_every_bit_stays(tmp_path, sources, kinds, source, sizing):
    manifest = read_manifest(sources / source)
    told = []
    made = reshard(sources / source, manifest, tmp_path / "out", sizing, advance=told.append).manifest
    assert verify(tmp_path / "out") == []
    assert same(contents(tmp_path / "out"), kinds) == []
    assert read_manifest(tmp_path / "out") == made
    for field in ("step", "attempt", "tokens", "t", "layout", "state"):
        assert getattr(made, field) == getattr(manifest, field), field
    assert sum(told) == bytes_of(kinds_of(manifest)) == sum(array.nbytes for _, array in kinds.values())
    held = [_tensor_bytes(made, file) for file in made.files]
    if sizing.files is not None:
        assert len(held) == sizing.files
        assert max(held) < 1.6 * sum(held) / sizing.files
    else:
        assert all(size <= 700_000 for size in held)
        assert len(held) < 2 * -(-sum(held) // 700_000)


def _tensor_bytes(manifest, file) -> int:
    width = {"bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}
    return sum(
        one.box.volume * (width.get(entry.dtype) or np.dtype(entry.dtype).itemsize)
        for entry in manifest.tensors.values()
        for one in entry.boxes
        if one.file == file
    )


def test_the_same_twice_is_the_same_files(tmp_path, sources):
    manifest = read_manifest(sources / "4")
    for name in ("a", "b"):
        reshard(sources / "4", manifest, tmp_path / name, Sizing(files=2))
    files = [sorted((path.name, path.read_bytes()) for path in (tmp_path / name).iterdir()) for name in ("a", "b")]
    assert files[0] == files[1]


def test_a_checkpoint_of_the_first_format_becomes_one_of_this(tmp_path):
    made = reshard(FORMAT_1, read_manifest(FORMAT_1), tmp_path / "out", Sizing(files=2)).manifest
    assert verify(tmp_path / "out") == []
    old = read_manifest(FORMAT_1)
    assert (made.step, made.state, made.tensors.keys()) == (old.step, old.state, old.tensors.keys())
    new = contents(tmp_path / "out")
    for name, entry in old.tensors.items():
        whole = np.zeros(entry.shape, new[name][1].dtype)
        for one in entry.boxes:
            with h5py.File(FORMAT_1 / one.file) as file:
                dataset = file[one.dataset]
                held = np.empty(dataset.shape, whole.dtype)
                dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, held, mtype=dataset.id.get_type())
            part = held if one.start is None else held[one.start : one.start + one.box.volume].reshape(one.box.shape)
            whole[tuple(slice(a, b) for a, b in zip(one.box.offset, one.box.stop, strict=True))] = part
        assert whole.tobytes() == new[name][1].tobytes(), name


def small(folder):
    return store(folder, 3, {"model/w": np.arange(600, dtype=np.float32), "model/v": np.arange(6, dtype=np.int64)}, state=STATE)


def test_a_changed_bit_is_named_and_nothing_is_made(tmp_path):
    manifest = small(tmp_path / "source")
    flip(tmp_path / "source" / "rank-00000.h5", manifest.tensors["model/w"].boxes[0].at + 99)
    with pytest.raises(CorruptCheckpointError, match=r"model/w.*source/rank-00000\.h5: chunk 0"):
        reshard(tmp_path / "source", manifest, tmp_path / "above" / "out", Sizing(files=2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_cut_at_any_call_it_is_there_whole_or_not_at_all(tmp_path):
    manifest = small(tmp_path / "source")
    counting = FakeSyscalls(tmp_path)
    reshard(tmp_path / "source", manifest, tmp_path / "runs" / "out", Sizing(files=2), calls=counting)
    assert counting.count > 10
    whole = 0
    for number in range(1, counting.count + 1):
        place = tmp_path / f"cut{number}"
        with pytest.raises(Cut):
            reshard(tmp_path / "source", manifest, place / "out", Sizing(files=2), calls=FakeSyscalls(tmp_path, cut_at=number, torn=True))
        if (place / "out").exists():
            whole += 1
            assert verify(place / "out") == []
        again = reshard(tmp_path / "source", manifest, tmp_path / f"again{number}" / "out", Sizing(files=2))
        assert again.manifest.tensors.keys() == manifest.tensors.keys()
    assert whole == 1, "after the rename, before its folder is durable"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_refuses_any_call_is_one_line_and_leaves_nothing(tmp_path, code):
    manifest, out, told = small(tmp_path / "source"), tmp_path / "above" / "out", []
    for number in range(1, 99):
        calls = FakeSyscalls(tmp_path, refusals=[Refusal(code, at=number)])
        told.append(_refused(lambda calls=calls: reshard(tmp_path / "source", manifest, out, Sizing(files=2), calls=calls)))
        if calls.count < number:
            break
        there = "it is there, whole" in told[-1] or not told[-1]  # not told: a hint was refused
        assert (verify(out) == []) == there, told[-1]
        if there:
            shutil.rmtree(tmp_path / "above")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["source"], told[-1]
    words = [text.rpartition(": ")[2] for text in told if text]
    assert all(text.startswith(f"{out}: {os.strerror(code)}: ") for text in told if text)
    assert words[0] == words[2] == "choose a folder where you can write"
    assert set(words[3:-1]) == {"nothing was made"}
    assert words[-1] == "it is there, whole, but a failure of power may take it away"


def _refused(deed) -> str:
    """The error's line; empty where there was none."""
    try:
        deed()
    except (CheckpointError, UserError) as error:
        return str(error)
    return ""


def test_what_is_there_is_not_replaced(tmp_path):
    manifest = small(tmp_path / "source")
    (tmp_path / "taken").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("taken", "link"):
        with pytest.raises(UserError, match=f"{name}: is there already"):
            reshard(tmp_path / "source", manifest, tmp_path / name, Sizing(files=1))
    with pytest.raises(UserError, match=r"manifest\.json/out: is a file, not a folder: choose"):
        reshard(tmp_path / "source", manifest, tmp_path / "source" / "manifest.json" / "out", Sizing(files=1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "source", "taken"]


def test_memory_is_bounded_however_large_the_tensors(tmp_path, monkeypatch):
    """40 MB in one tensor and in thousands; batches, boxes and what waits for the disk are made small here."""
    numbers = np.random.default_rng(1)
    tensors = {"model/large": numbers.random((5000, 1000), np.float32)}
    tensors |= {f"model/{i}": numbers.random(5000, np.float32) for i in range(1000)}
    manifest = store(tmp_path / "source", 1, tensors)
    for module, name in ((cuts, "MOST_BOX_BYTES"), (making, "BATCH_BYTES")):
        monkeypatch.setattr(module, name, 1 << 20)
    monkeypatch.setattr(writing, "AHEAD", 2)
    tracemalloc.start()
    reshard(tmp_path / "source", manifest, tmp_path / "out", Sizing(files=1))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20e6
    assert verify(tmp_path / "out") == []


def test_it_needs_no_torch():
    names = ("rewrite", "expected", "dcp_metadata", "dcp_names")
    code = f"import sys\n{chr(10).join(f'import slurmtrain.checkpoint.{name}' for name in names)}\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0


def test_a_run_that_is_made_with_its_checkpoint_is_there_whole_or_not_at_all(tmp_path):
    manifest = small(tmp_path / "source")

    def run(name, calls):
        def inner(out):
            return reshard(tmp_path / "source", manifest, out, Sizing(files=2), calls=calls)

        return making.make_run(tmp_path / name / "run", 3, b"{}", inner, calls=calls)

    counting, whole = FakeSyscalls(tmp_path), 0
    run("counted", counting)
    for number in range(1, counting.count + 1):
        with pytest.raises(Cut):
            run(f"cut{number}", FakeSyscalls(tmp_path, cut_at=number, torn=True))
        made = tmp_path / f"cut{number}" / "run"
        if made.exists():
            whole += 1
            assert verify(made / "checkpoints" / "step-00000003") == []
            assert (made / "job.json").read_bytes() == b"{}"
            assert sorted(path.name for path in made.rglob("*")) == [
                "checkpoints",
                "job.json",
                "manifest.json",
                "rank-00000.h5",
                "rank-00001.h5",
                "step-00000003",
            ]
    assert whole == 1
