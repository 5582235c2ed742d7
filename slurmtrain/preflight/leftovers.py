"""Shared memory that killed MPI starts left on a node.

MPICH names its segments after job and step (`/dev/shm/mpich_shm_<hash>_<n>`) and attaches to one that is there already. A start that
was killed before it had unlinked them leaves them behind; a requeued job counts its steps from 0 again, so its next world would read
what the killed one wrote, and die of it ("failed to unpack address", "Message truncated").
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from slurmtrain.clock import Clock

SHM = Path("/dev/shm")  # noqa: S108 named by POSIX shm_open on Linux
PROC = Path("/proc")
PATTERN = "mpich_shm_*"
LOOK_AGAIN_S = 0.2
"""A segment that is being made is unmapped for microseconds."""


def unused_segments(shm: Path, proc: Path) -> dict[Path, int]:
    """Segments of this user that no process has mapped, each with its inode."""
    mine = dict(_owned(shm))
    mapped = _mapped(proc) if mine else set()
    return {path: inode for path, inode in mine.items() if str(path) not in mapped}


def remove_leftovers(clock: Clock, *, shm: Path = SHM, proc: Path = PROC) -> list[Path]:
    """Remove those that were unused at two looks in a row; what was removed."""
    before = unused_segments(shm, proc)
    if not before:
        return []
    clock.sleep(LOOK_AGAIN_S)
    removed = [path for path, inode in unused_segments(shm, proc).items() if before.get(path) == inode]
    for path in removed:
        path.unlink(missing_ok=True)
    return removed


def _owned(shm: Path) -> Iterator[tuple[Path, int]]:
    for path in sorted(shm.glob(PATTERN)):
        try:
            found = path.stat()
        except OSError:
            continue
        if found.st_uid == os.geteuid():
            yield path, found.st_ino


def _mapped(proc: Path) -> set[str]:
    """Files that processes have mapped, as far as this user may look: its own processes."""
    files: set[str] = set()
    for maps in proc.glob("[0-9]*/maps"):
        try:
            lines = maps.read_text(errors="replace").splitlines()
        except OSError:
            continue
        files |= {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6}
    return files
