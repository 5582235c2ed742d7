"""The copy of the code is what git tracks, as it stands in the working tree, and what --include names; never more than fits."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from slurmtrain.errors import ConfigError, UserError
from slurmtrain.launch.request import CodeRecord
from slurmtrain.launch.snapshot import Snapshot, copy_snapshot, plan_snapshot
from slurmtrain.shell import Completed, SystemShell

ENV = {**os.environ, "GIT_DIR": "/nowhere", "GIT_CONFIG_GLOBAL": "/dev/null"}
GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]


def git(folder, *words):
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {"GIT_CONFIG_GLOBAL": "/dev/null"}
    return subprocess.run([*GIT, "-C", str(folder), *words], check=True, capture_output=True, text=True, env=env).stdout


@pytest.fixture
def repo(tmp_path):
    top = tmp_path / "my repo"
    (top / "jobs").mkdir(parents=True)
    git(top, "init", "-q")
    (top / ".gitignore").write_text("*.bin\n")
    (top / "model.py").write_text("one\n")
    (top / "tool.sh").write_text("#!/bin/sh\n")
    (top / "tool.sh").chmod(0o755)
    (top / "ümlaut name.py").write_text("x\n")
    (top / "gone.py").write_text("x\n")
    (top / "link.py").symlink_to("model.py")
    (top / "jobs/job.toml").write_text("")
    git(top, "add", ".")
    git(top, "commit", "-qm", "first")
    return top


def snapshot(folder, **options):
    defaults = {"include": (), "live": False, "shell": SystemShell(), "env": ENV}
    return plan_snapshot(folder / "jobs/job.toml", **{**defaults, **options})


def copied(snap, target) -> dict[str, str]:
    copy_snapshot(snap, target)
    return {str(p.relative_to(target)): p.read_text() for p in sorted(target.rglob("*")) if p.is_file()}


def test_tracked_files_as_they_stand(repo, tmp_path):
    (repo / "model.py").write_text("two\n")
    (repo / "gone.py").unlink()
    (repo / "untracked.py").write_text("x")
    (repo / "weights.bin").write_text("x")
    snap = snapshot(repo)
    found = copied(snap, tmp_path / "code")
    assert set(found) == {".gitignore", "model.py", "tool.sh", "ümlaut name.py", "link.py", "jobs/job.toml"}
    assert found["model.py"] == "two\n"
    assert (tmp_path / "code/link.py").readlink() == (repo / "link.py").readlink()
    assert os.access(tmp_path / "code/tool.sh", os.X_OK)
    assert snap.record.commit == git(repo, "rev-parse", "HEAD").strip()
    assert snap.record.dirty
    assert (snap.record.files, snap.record.source) == (6, str(repo))


def test_a_clean_tree_is_not_dirty_whatever_lies_beside(repo):
    (repo / "untracked.py").write_text("x")
    assert not snapshot(repo).record.dirty


def test_a_repository_without_commit(tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/job.toml").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    snap = snapshot(tmp_path)
    assert snap.record.commit is None
    assert [name for _, name in snap.files] == ["jobs/job.toml"]


def test_links_that_lead_out_of_the_repository_still_lead_there(repo, tmp_path):
    (tmp_path / "shared.py").write_text("shared\n")
    (repo / "jobs/out.py").symlink_to("../../shared.py")
    git(repo, "add", ".")
    assert copied(snapshot(repo), tmp_path / "elsewhere/deep/code")["jobs/out.py"] == "shared\n"


def test_includes_inside_keep_their_place_and_others_their_last_name(repo, tmp_path):
    (repo / "data").mkdir()
    (repo / "data/vocab.bin").write_text("v")
    (repo / "data/__pycache__").mkdir()
    (repo / "data/__pycache__/x.pyc").write_text("v")
    outside = tmp_path / "lib/more"
    outside.mkdir(parents=True)
    (outside / "a.py").write_text("a")
    found = copied(snapshot(repo, include=(repo / "data", outside)), tmp_path / "code")
    assert {"data/vocab.bin", "more/a.py"} <= set(found)
    assert not [name for name in found if "pycache" in name]


def test_an_include_that_is_not_there(repo):
    with pytest.raises(ConfigError, match=r"--include.*gone"):
        snapshot(repo, include=(repo / "gone",))


def test_without_a_repository_only_includes_are_copied(tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/job.toml").write_text("")
    (tmp_path / "jobs/train.py").write_text("t")
    assert snapshot(tmp_path).files == ()
    assert [name for _, name in snapshot(tmp_path, include=(tmp_path / "jobs/train.py",)).files] == ["train.py"]


def test_live_is_a_link_to_the_repository(repo, tmp_path):
    snap = snapshot(repo, live=True)
    copy_snapshot(snap, tmp_path / "run/code")
    (repo / "late.py").write_text("late")
    assert (tmp_path / "run/code/late.py").read_text() == "late"
    assert snap.record.live


def test_live_without_repository_is_the_job_files_folder(tmp_path):
    (tmp_path / "jobs").mkdir()
    assert snapshot(tmp_path, live=True).link == tmp_path / "jobs"


def test_too_much_names_the_largest_files(repo):
    (repo / "huge.txt").write_text("x" * 5000)
    git(repo, "add", ".")
    with pytest.raises(UserError, match=r"more than 1000 B; the largest: huge.txt \(4.9 KiB\).*--live"):
        snapshot(repo, limit_bytes=1000)


def test_git_that_refuses_is_told_in_its_own_words(repo):
    class Refusing(SystemShell):
        def run(self, argv, **more):
            return Completed(tuple(argv), 128, "", "fatal: detected dubious ownership in repository at '/x'\nadd an exception\n")

    with pytest.raises(UserError, match=r"git cannot list.*dubious ownership.*--live"):
        snapshot(repo, shell=Refusing())


def test_a_machine_without_git(repo):
    class NoGit(SystemShell):
        def run(self, argv, **more):
            return Completed(tuple(argv), 127, "", "git: No such file or directory")

    assert snapshot(repo, shell=NoGit()).files == ()


def test_a_disk_that_is_full_is_named_by_the_copy_not_by_what_was_read(tmp_path, monkeypatch):
    """Broken: the user was told that the disk of his own, read-only code was full."""
    (tmp_path / "train.py").write_text("")
    snap = Snapshot(CodeRecord(source="", commit=None, dirty=False), ((tmp_path / "train.py", "train.py"),))

    def full(source: Path, _copy: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(source))

    monkeypatch.setattr(shutil, "copy2", full)
    with pytest.raises(OSError, match="No space left") as caught:
        copy_snapshot(snap, tmp_path / "run/code")
    assert caught.value.filename == str(tmp_path / "run/code/train.py")
