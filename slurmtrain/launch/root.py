"""The root of the runs: there, writable, and on a file system that all nodes see."""

from __future__ import annotations

import os
import re
from pathlib import Path

from slurmtrain.errors import UserError

MOUNTS = Path("/proc/self/mounts")
NODE_LOCAL = frozenset({"tmpfs", "ramfs", "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "f2fs", "jfs", "vfat"})


def check_root(root: Path) -> None:
    """Refuse a root in which no run can be made; one that is missing counts when its parent could hold it. Raises UserError."""
    if root.exists() and not root.is_dir():
        raise UserError(f"root {root}: is not a folder")
    folder = root if root.exists() else root.parent
    if not folder.is_dir():
        raise UserError(f"root {root}: there is no folder {folder}: create it (mkdir -p), or give another --root")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"root {root}: you may not write in {folder}: give another --root")


def file_system(path: Path, mounts: str) -> str:
    """Type of the file system that holds a path, by the text of /proc/self/mounts; empty when it cannot be told.

    >>> file_system(Path("/home/ada/runs"), "sda1 / ext4 rw 0 0\\nsrv:/home /home nfs4 rw 0 0\\n")
    'nfs4'
    """
    best, kind = "", ""
    for line in mounts.splitlines():
        words = line.split(" ")
        if len(words) < 3:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda form: chr(int(form[1], 8)), words[1])
        if len(point) >= len(best) and path.is_relative_to(point):
            best, kind = point, words[2]
    return kind


def local_warning(root: Path, mounts: str) -> str | None:
    """What to tell whoever keeps runs where other nodes cannot see them; None where all is well."""
    kind = file_system(root, mounts)
    return f"{root} is on {kind}, which other nodes may not see: a run needs a shared file system" if kind in NODE_LOCAL else None
