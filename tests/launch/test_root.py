"""A root in which no run can be made is refused, and one that other nodes may not see is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmtrain.errors import UserError
from slurmtrain.launch.root import check_root, file_system, local_warning

MOUNTS = """\
/dev/sda1 / ext4 rw,relatime 0 0
tmpfs /tmp tmpfs rw 0 0
10.0.0.1@o2ib:/scratch /lustre lustre rw 0 0
nas:/x /mnt/my\\040runs nfs4 rw 0 0
overlay /lustre/inner overlay rw 0 0
torn
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/ada", "ext4"),
        ("/tmp/x", "tmpfs"),
        ("/lustre/runs", "lustre"),
        ("/lustre2", "ext4"),
        ("/mnt/my runs/x", "nfs4"),
        ("/lustre/inner/x", "overlay"),
    ],
)
def test_the_file_system_is_that_of_the_longest_mount_point(path, kind):
    assert file_system(Path(path), MOUNTS) == kind


def test_a_warning_for_what_one_node_alone_sees():
    assert "/tmp/runs is on tmpfs" in local_warning(Path("/tmp/runs"), MOUNTS)
    assert local_warning(Path("/lustre/runs"), MOUNTS) is None
    assert local_warning(Path("/runs"), "") is None


def test_a_root_that_is_there_or_can_be_made(tmp_path):
    check_root(tmp_path)
    check_root(tmp_path / "new")


def test_a_root_that_is_neither(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is not a folder"):
        check_root(tmp_path / "file")
    with pytest.raises(UserError, match=r"there is no folder .*/a: create it"):
        check_root(tmp_path / "a/b")


def test_a_root_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(UserError, match="you may not write in"):
        check_root(tmp_path)
