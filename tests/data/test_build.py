"""Texts become byte tokens in a fixed order; the folder appears whole, and another's content is never replaced unasked."""

from __future__ import annotations

import errno
import os

import pytest
from click.testing import CliRunner

from slurmtrain.cli.data import command
from slurmtrain.data.build import build
from slurmtrain.data.texts import find_texts
from slurmtrain.data.tokens import TokenFolder
from slurmtrain.errors import DataError, UserError
from tests.fakes.disk import FakeDisk


@pytest.fixture
def texts(tmp_path):
    root = tmp_path / "texts"
    contents = {
        "b.txt": b"bb",
        "a/z.py": b"print()",
        "a.md": "grüß\n".encode(),
        "a/empty.py": b"",
        "image.png": b"\x89PNG",
        ".hidden.txt": b"no",
        ".git/config.txt": b"no",
        "a/__pycache__/x.py": b"no",
        "UPPER.TXT": b"U",
    }
    for name, data in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def documents(folder):
    tokens = TokenFolder.open(folder)
    assert tokens.verify() == []
    return [tokens.document(i).tolist() for i in range(tokens.documents)]


def test_each_text_is_its_bytes_and_an_end_in_the_order_of_paths(texts, tmp_path):
    done = build([texts], tmp_path / "out")
    expected = [b"U", "grüß\n".encode(), b"print()", b"bb"]
    assert documents(tmp_path / "out") == [[*data, 256] for data in expected]
    assert (done.documents, done.tokens) == (4, sum(len(data) + 1 for data in expected))
    assert TokenFolder.open(done.folder).vocab == 257


def test_named_paths_come_in_the_order_given_whatever_their_suffix_and_once(texts, tmp_path):
    done = build([texts / "image.png", texts / "a", texts / "a" / "z.py", texts / "image.png"], tmp_path / "out")
    assert documents(done.folder) == [[*b"\x89PNG", 256], [*b"print()", 256]]


def test_links_that_go_round_in_circles_end(texts, tmp_path):
    (texts / "a" / "up").symlink_to(texts)
    (texts / "a" / "broken.txt").symlink_to(texts / "nothing")
    assert build([texts], tmp_path / "out").documents == 4


def test_a_text_larger_than_the_read_block_is_whole(texts, tmp_path, monkeypatch):
    monkeypatch.setattr("slurmtrain.data.texts._READ_BYTES", 3)
    build([texts / "a" / "z.py"], tmp_path / "out")
    assert documents(tmp_path / "out") == [[*b"print()", 256]]


def test_building_again_changes_nothing_and_other_content_is_refused_unless_forced(texts, tmp_path):
    out = tmp_path / "out"
    build([texts], out)
    inode = out.stat().st_ino
    assert build([texts], out).unchanged
    assert out.stat().st_ino == inode
    with pytest.raises(UserError, match="holds other tokens: choose another --out, or give --force"):
        build([texts / "b.txt"], out)
    assert len(documents(out)) == 4
    assert not build([texts / "b.txt"], out, force=True).unchanged
    assert documents(out) == [[98, 98, 256]]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "texts"]


def test_a_damaged_folder_is_replaced_only_when_forced(texts, tmp_path):
    out = build([texts], tmp_path / "out").folder
    (out / "index.json").write_text("{")
    with pytest.raises(UserError, match="--force"):
        build([texts], out)
    build([texts], out, force=True)
    assert len(documents(out)) == 4


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_of_something_else_is_never_replaced(texts, tmp_path, force):
    with pytest.raises(UserError, match="holds files that are not tokens"):
        build([texts], texts / "a", force=force)
    with pytest.raises(UserError, match="is not a folder"):
        build([texts], texts / "b.txt", force=force)
    assert (texts / "a" / "z.py").exists()


def test_an_empty_folder_may_be_filled(texts, tmp_path):
    (tmp_path / "out").mkdir()
    assert build([texts], tmp_path / "out").documents == 4


@pytest.mark.parametrize(
    "name, words",
    [
        ("none", "none: no such file or folder"),
        ("pipe", "pipe: not a file or folder"),
        ("bare", "no text in"),
    ],
)
def test_nothing_to_read_is_a_users_mistake(texts, tmp_path, name, words):
    os.mkfifo(texts / "pipe")
    (texts / "bare").mkdir()
    (texts / "bare" / "x.png").write_bytes(b"x")
    with pytest.raises(UserError, match=words):
        build([texts / name], tmp_path / "out")


def test_only_empty_files_is_a_users_mistake_and_leaves_nothing(texts, tmp_path):
    with pytest.raises(UserError, match="all texts are empty"):
        build([texts / "a" / "empty.py"], tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["texts"]


@pytest.mark.parametrize("method", ["write", "publish_dir"])
@pytest.mark.parametrize("force", [False, True])
def test_a_full_disk_leaves_what_was_there(texts, tmp_path, method, force):
    out = tmp_path / "out"
    if force:
        build([texts / "b.txt"], out)
    with pytest.raises(DataError, match="No space left on device"):
        build([texts], out, force=force, disk=FakeDisk({method: None}, errno.ENOSPC))
    assert sorted(p.name for p in tmp_path.iterdir()) == (["out", "texts"] if force else ["texts"])
    assert not force or documents(out) == [[98, 98, 256]]


def test_the_order_does_not_depend_on_the_file_system(texts, monkeypatch):
    real = os.walk
    expected = list(find_texts([texts]))

    def backwards(folder, **more):
        for parent, folders, names in real(folder, **more):
            folders.reverse()
            yield parent, folders, names[::-1]

    monkeypatch.setattr(os, "walk", backwards)
    assert list(find_texts([texts])) == expected


def test_the_command_prints_what_was_built(texts, tmp_path):
    done = CliRunner().invoke(command, ["build", str(texts), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0
    assert [line.split() for line in done.output.splitlines()] == [["tokens", "21"], ["documents", "4"], ["folder", str(tmp_path / "out")]]
