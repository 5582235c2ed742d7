"""Where tokens are written: links are followed, wrong places refused, makers that died swept, others at the same place survived."""

from __future__ import annotations

import errno
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from slurmtrain.aside import aside, sweep
from slurmtrain.atomic import SystemDisk
from slurmtrain.data.source import open_source
from slurmtrain.data.writing import About, Piece, store
from slurmtrain.errors import DataError, UserError

ABOUT = About(257, 256)
BUILD = "from pathlib import Path; import sys; from slurmtrain.data.build import build; build([Path(sys.argv[1])], Path(sys.argv[2]))"


def pieces(*tokens: int):
    yield Piece(np.array([*tokens, 256]), None, end=True)


def held(path: Path) -> list[int]:
    source = open_source(path)
    return source.read(0, source.summary.tokens).tolist()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_link_is_followed_and_stays(tmp_path):
    (tmp_path / "big").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "big")
    store(pieces(1), tmp_path / "link", "folder", ABOUT)
    store(pieces(2), tmp_path / "link", "folder", ABOUT, force=True)
    assert (tmp_path / "link").is_symlink()
    assert held(tmp_path / "big") == [2, 256]
    assert names(tmp_path) == ["big", "link"]


def test_the_current_folder_may_be_filled(tmp_path, monkeypatch):
    (tmp_path / "new").mkdir()
    monkeypatch.chdir(tmp_path / "new")
    store(pieces(1), Path(), "folder", ABOUT)
    assert held(tmp_path / "new") == [1, 256]


@pytest.mark.parametrize("kind", ["folder", "megatron", "hdf5"])
@pytest.mark.parametrize("name", ["file/below", "x" * 300, "/proc/none"])
def test_a_place_where_nothing_can_be_made_is_a_users_mistake(tmp_path, kind, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="choose an --out where you can write"):
        store(pieces(1), tmp_path / f"{name}.h5", kind, ABOUT)
    assert names(tmp_path) == ["file"]


def test_names_of_the_other_formats(tmp_path):
    with pytest.raises(UserError, match=r"tokens: the name of an HDF5 file ends with .h5 or .hdf5: use .*tokens.h5"):
        store(pieces(1), tmp_path / "tokens", "hdf5", ABOUT)
    store(pieces(1), tmp_path / "web.bin", "megatron", ABOUT)
    assert names(tmp_path) == ["web.bin", "web.idx"]


class Faster(SystemDisk):
    """Somebody else publishes `theirs` at the moment in which this disk is asked to."""

    def __init__(self, *theirs: int, times: int = 1) -> None:
        super().__init__()
        self.theirs, self.times = theirs, times

    def publish_dir(self, staging: Path, final: Path) -> None:
        if self.times:
            self.times -= 1
            store(pieces(*self.theirs), final, "folder", ABOUT, force=True)
        super().publish_dir(staging, final)


def test_another_that_was_faster_is_an_equal_or_a_stranger(tmp_path):
    assert store(pieces(1), tmp_path / "same", "folder", ABOUT, disk=Faster(1)).unchanged
    with pytest.raises(UserError, match="holds other tokens"):
        store(pieces(1), tmp_path / "other", "folder", ABOUT, disk=Faster(2))
    assert held(tmp_path / "other") == [2, 256]
    store(pieces(1), tmp_path / "forced", "folder", ABOUT, disk=Faster(2, times=3), force=True)
    assert held(tmp_path / "forced") == [1, 256]
    with pytest.raises(DataError, match="others write it again and again"):
        store(pieces(1), tmp_path / "busy", "folder", ABOUT, disk=Faster(2, times=99), force=True)
    assert names(tmp_path) == ["busy", "forced", "other", "same"]


@pytest.mark.parametrize("kind, name", [("megatron", "web"), ("hdf5", "web.h5")])
def test_a_file_that_another_made_meanwhile_stays(tmp_path, kind, name):
    def slowly():
        yield from pieces(1)
        store(pieces(2), tmp_path / name, kind, ABOUT)

    with pytest.raises(UserError, match="is there already"):
        store(slowly(), tmp_path / name, kind, ABOUT)
    assert held(tmp_path / name) == [2, 256]
    assert not [one for one in names(tmp_path) if one.startswith(".")]


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_fails_is_no_users_mistake(tmp_path, fault):
    def failing():
        yield from pieces(1)
        raise OSError(fault, os.strerror(fault))

    with pytest.raises(DataError, match="nothing was changed; make room, or choose another --out"):
        store(failing(), tmp_path / "out", "folder", ABOUT)
    assert names(tmp_path) == []


def test_a_killed_build_leaves_what_was_there_and_the_next_sweeps(tmp_path):
    out, pipe = tmp_path / "out", tmp_path / "pipe"
    store(pieces(1), out, "folder", ABOUT)
    os.mkfifo(pipe)
    waits = "import slurmtrain.data.texts as t; t.check_paths = lambda _: None; "  # a pipe: the build is in the middle when it opens
    child = subprocess.Popen([sys.executable, "-c", waits + BUILD, pipe, out])
    with open(pipe, "wb") as text:
        text.write(b"half")
        text.flush()
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    assert held(out) == [1, 256]
    assert [one.split(".")[1:3] for one in names(tmp_path) if one.startswith(".out")] == [["out", platform.node()]]
    assert store(pieces(1), out, "folder", ABOUT).unchanged
    assert names(tmp_path) == ["out", "pipe"]


def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_only_what_the_dead_of_this_machine_left_is_swept(tmp_path):
    out, dead = tmp_path / "a.b", dead_pid()
    left = [f".a.b.{platform.node()}.{dead}.0123abcd.tmp{end}" for end in ("", ".raw", ".bin")]
    kept = [
        aside(out).name,
        f".a.b.elsewhere.{dead}.0123abcd.tmp",
        f".axb.{platform.node()}.{dead}.0123abcd.tmp",
        f".a.b.{platform.node()}.{dead}.tmp",
    ]
    for name in [*left, *kept]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    sweep(out)
    assert names(tmp_path) == sorted(kept)


@pytest.mark.parametrize("there", [False, True])
def test_what_was_moved_aside_comes_back_where_nothing_took_its_place(tmp_path, there):
    out = tmp_path / "out"
    store(pieces(1), out, "folder", ABOUT)
    out.rename(tmp_path / f".out.{platform.node()}.{dead_pid()}.0123abcd.old")
    if there:
        store(pieces(2), tmp_path / "x", "folder", ABOUT)
        (tmp_path / "x").rename(out)
    sweep(out)
    assert held(out) == ([2, 256] if there else [1, 256])
    assert names(tmp_path) == ["out"]
