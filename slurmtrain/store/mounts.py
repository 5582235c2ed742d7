"""Which file system a folder lies on, by the kernel's table of mounts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

TABLE = Path("/proc/self/mountinfo")


@dataclass(frozen=True)
class Mount:
    """Mount point, kind of file system (lustre, gpfs, nfs4, xfs, ...), and what is mounted (`server:/home`, `gpfs0`)."""

    point: Path
    kind: str
    source: str


def mount_of(folder: Path, table: Path = TABLE) -> Mount | None:
    """The mount that holds a folder; None where the table cannot be read."""
    try:
        lines, real = table.read_text(encoding="utf-8", errors="surrogateescape").splitlines(), folder.resolve()
    except (OSError, RuntimeError):
        return None
    best: Mount | None = None
    for mount in filter(None, map(_parsed, lines)):
        if real.is_relative_to(mount.point) and (best is None or mount.point.is_relative_to(best.point)):
            best = mount  # the longest, and of two on one point the later, which covers the other
    return best


def _parsed(line: str) -> Mount | None:
    """One line.

    >>> _parsed(r"36 35 98:0 / /my\\040disk rw,noatime shared:1 - nfs4 server:/home rw,vers=4.2")
    Mount(point=PosixPath('/my disk'), kind='nfs4', source='server:/home')
    """
    left, _, right = line.partition(" - ")
    head, tail = left.split(" "), right.split(" ")
    if len(head) < 5 or len(tail) < 2:
        return None
    return Mount(Path(_plain(head[4])), tail[0], _plain(tail[1]))


def _plain(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda form: chr(int(form[1], 8)), text)
